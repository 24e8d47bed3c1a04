"""`hpc-amp lint` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpc_amp.cli.app import app
from hpc_amp.errors import UsageError

CLEAN = "#!/bin/bash\n#SBATCH -N 1\nsrun ./a.out\n"
WARNING = CLEAN + "export MASTER_PORT=29500\n"
ERROR = "#!/bin/bash\n#SBATCH --job-name=my job\nsrun ./a.out\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("clean", CLEAN), ("warning", WARNING), ("error", ERROR)):
        Path(name).write_text(text)


def lint(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["lint", *words], input=stdin)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["clean"], 0),
        (["warning"], 0),
        (["error"], 1),
        (["clean", "error"], 1),
        (["--strict", "clean"], 0),
        (["--strict", "warning"], 1),
        (["--strict", "error"], 1),
        (["--json", "clean"], 0),
        (["--json", "error"], 1),
        (["--json", "--strict", "warning"], 1),
    ],
)
def test_exit_codes(words: list[str], status: int) -> None:
    assert lint(*words).exit_code == status


def test_a_clean_script_is_said_to_be_clean() -> None:
    Path("plain").write_text("echo\n")

    assert lint("clean", "plain").output == (
        "clean: no findings (slurm)\nplain: no findings (no directives)\n"
    )


def test_one_line_a_finding_its_fix_and_a_summary() -> None:
    lines = lint("error", "warning", "clean").output.splitlines()

    assert lines[0].startswith("error:2: error [stray-word] `job` belongs to no option")
    assert lines[1].startswith("    ")
    assert lines[2].startswith("warning:4: warning [fixed-port] port 29500")
    assert lines[4:] == ["clean: no findings (slurm)", "1 error, 1 warning in 3 scripts"]


def test_json() -> None:
    assert json.loads(lint("--json", "clean").output) == []
    (finding,) = json.loads(lint("--json", "error").output)

    assert set(finding) == {
        "id", "severity", "what", "why", "fix", "where", "file", "line", "column", "cell",
    }  # fmt: skip
    assert (finding["file"], finding["line"]) == ("error", 2)
    assert (finding["severity"], finding["id"]) == ("error", "stray-word")


def test_standard_input() -> None:
    assert lint("-", stdin=CLEAN).output == "<stdin>: no findings (slurm)\n"
    assert lint("-", stdin=ERROR).output.startswith("<stdin>:2: error [stray-word]")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "missing cannot be read: No such file or directory"),
        (".", ". cannot be read: Is a directory"),
        ("binary", "binary is a binary file, not a script"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_nothing_is_checked(path: str, message: str) -> None:
    Path("binary").write_bytes(b"\x7fELF\0\0")

    result = lint("error", path)

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == message
    assert result.exception.exit_code == 2
    assert result.output == ""


def test_a_script_is_needed() -> None:
    assert lint().exit_code == 2


def test_odd_names_and_bytes_are_shown() -> None:
    Path("é\n x.sh").write_bytes(b"#!/bin/bash\n#SBATCH --job-name=\xff\xfe b\x1b[31m\n")

    result = subprocess.run(
        [sys.executable, "-m", "hpc_amp", "lint", "é\n x.sh"], capture_output=True, text=True
    )

    assert result.returncode == 1
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
