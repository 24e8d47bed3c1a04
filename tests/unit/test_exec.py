"""`python -m hpc_amp.distributed.exec`: any command as one rank."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environment import clean_environ

USAGE = "usage: python -m hpc_amp.distributed.exec (--job JOB_JSON | -- COMMAND [ARGUMENT ...])"
SHOW = (
    "import json, os, sys; json.dump([sys.executable, sys.argv[1:], os.getcwd(), "
    "dict(os.environ)], sys.stdout)"
)


def execute(
    *arguments: str, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpc_amp.distributed.exec", *arguments],
        cwd=cwd,
        env=clean_environ(**environ),
        text=True,
        capture_output=True,
        timeout=120,
    )


def write_job(folder: Path, **job: Any) -> str:
    """A run directory with nothing but the job."""
    content = {"container": {"env": {}}, "run": None, **job}
    path = folder / "job.json"
    path.write_text(json.dumps({"job": content, "workdir": str(folder / "work")}))
    (folder / "work").mkdir()
    return str(path)


def test_a_command_becomes_one_rank() -> None:
    result = execute("--", "python", "-c", SHOW, "a b", "--", "", "$(x)")

    assert result.returncode == 0, result.stderr
    program, arguments, _, environ = json.loads(result.stdout)
    assert program == sys.executable
    assert arguments == ["a b", "--", "", "$(x)"]
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("0", "1", "0")


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_is_the_interpreter_that_runs_this(word: str, tmp_path: Path) -> None:
    (tmp_path / word).write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / word).chmod(0o755)

    assert execute("--", word, "-c", "", PATH=f"{tmp_path}:/usr/bin:/bin").returncode == 0
    assert execute("--", f"{tmp_path}/{word}").returncode == 9


def test_exit_codes_and_signals_are_the_program_s_own() -> None:
    assert execute("--", "sh", "-c", "exit 75").returncode == 75
    assert execute("--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_a_job_brings_command_environment_and_folder(tmp_path: Path) -> None:
    env = {"PLAIN": "a b", "RANK": "99", "TEXT": "$(x)\n'\"", "PYTHONPATH": "/more"}
    job = write_job(tmp_path, run=["python", "-c", SHOW, "x y"], container={"env": env})

    result = execute("--job", job, PLAIN="from outside")

    assert result.returncode == 0, result.stderr
    _, arguments, folder, environ = json.loads(result.stdout)
    assert arguments == ["x y"]
    assert folder == str(tmp_path / "work")
    assert (environ["PLAIN"], environ["TEXT"]) == ("a b", "$(x)\n'\"")
    assert environ["RANK"] == "0"  # the world is not the configuration's to set
    assert environ["PYTHONPATH"] == f"{tmp_path}/src:/more"


def test_a_relative_command_is_looked_up_in_the_job_s_folder(tmp_path: Path) -> None:
    job = write_job(tmp_path, run=["./mine"])
    (tmp_path / "work" / "mine").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "work" / "mine").chmod(0o755)

    assert execute("--job", job).returncode == 7


def test_a_command_is_looked_up_on_the_job_s_path(tmp_path: Path) -> None:
    job = write_job(
        tmp_path, run=["mine"], container={"env": {"PATH": f"{tmp_path}/work:/usr/bin:/bin"}}
    )
    (tmp_path / "work" / "mine").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "work" / "mine").chmod(0o755)

    assert execute("--job", job).returncode == 7


def test_a_job_without_a_command_trains(tmp_path: Path) -> None:
    """Shown by the module that it asks for, in the snapshot beside the job."""
    job = write_job(tmp_path)
    package = tmp_path / "src" / "hpc_amp" / "train"
    package.mkdir(parents=True)
    (tmp_path / "src/hpc_amp/__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:])")

    result = execute("--job", job)

    assert result.stdout == f"{[job]}\n", result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--"], ["python", "x.py"], ["--job"], ["--job", "a", "b"], ["--help"]]
)
def test_other_words_are_refused(arguments: list[str]) -> None:
    result = execute(*arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"hpc-amp: {USAGE}\n"


@pytest.mark.parametrize("program", ["no-such-program", "./no-such-file", "/etc/passwd", "/"])
def test_a_program_that_cannot_run(program: str, tmp_path: Path) -> None:
    result = execute("--", program, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: rank 0 cannot run {program!r} in {str(tmp_path)!r}: ")


def test_a_folder_that_is_not_in_the_image(tmp_path: Path) -> None:
    job = write_job(tmp_path, run=["true"])
    (tmp_path / "work").rmdir()

    result = execute("--job", job)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: rank 0 cannot run 'true' in '{tmp_path}/work': ")
    assert line.endswith(f"No such file or directory: '{tmp_path}/work'")


@pytest.mark.parametrize("content", [None, "", "{", "\xff"])
def test_a_job_that_cannot_be_read(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))

    result = execute("--job", str(path))

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: {path} cannot be read inside the job: ")


def test_a_wrong_world_is_one_line() -> None:
    result = execute("--", "true", HPC_AMP_WORLD_SIZE="4")

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: the job was started for 4 ranks, but this process sees 1 ")


def test_ranks_without_a_meeting_point() -> None:
    result = execute("--", "true", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")

    assert result.returncode == 2
    assert result.stderr == (
        "hpc-amp: MASTER_ADDR and MASTER_PORT not set, and 2 ranks have to meet\n"
    )
