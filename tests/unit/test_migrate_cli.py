"""`hpc-amp migrate` as a user calls it: files, folders, notebooks, bytes, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.environment import clean_environ

from hpc_amp.cli.app import app
from hpc_amp.errors import UsageError
from hpc_amp.migrate import files

CLEAN = "import torch\nscaler = torch.amp.GradScaler('cuda')\n"
OLD = "import torch\nscaler = torch.cuda.amp.GradScaler()  # amp\n"
NEW = 'import torch\nscaler = torch.amp.GradScaler("cuda")  # amp\n'
BOTH = OLD + "make = torch.cuda.amp.autocast\n"
BROKEN = "import torch.cuda.amp\nprint 'old'\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"clean.py": CLEAN, "old.py": OLD, "both.py": BOTH, "broken.py": BROKEN}
    for name, text in files.items():
        Path(name).write_text(text)


def migrate(*words: str) -> Result:
    return CliRunner().invoke(app, ["migrate", *words])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["clean.py"], 0),
        (["old.py"], 1),
        (["both.py"], 1),
        (["--diff", "clean.py"], 0),
        (["--diff", "old.py"], 1),
        (["--json", "clean.py"], 0),
        (["--json", "old.py"], 1),
        (["--write", "clean.py"], 0),
        (["--write", "old.py"], 0),
        (["--write", "both.py"], 1),
        (["--write", "--ignore", "old-autocast", "both.py"], 0),
        (["--write", "--json", "old.py"], 0),
        (["broken.py"], 2),
        (["clean.py", "broken.py"], 2),
        ([], 2),
    ],
)
def test_exit_codes(words: list[str], status: int) -> None:
    assert migrate(*words).exit_code == status


def test_nothing_is_changed_without_write() -> None:
    for words in ([], ["--diff"], ["--json"], ["--to", "native"]):
        migrate(*words, "old.py")
        assert Path("old.py").read_text() == OLD


def test_a_finding_says_where_what_and_what_to_write() -> None:
    assert migrate("clean.py", "both.py").output.splitlines() == [
        "both.py:2:10: warning [old-grad-scaler] `torch.cuda.amp.GradScaler()`: deprecated since "
        "torch 2.4; torch.amp has it since torch 2.3",
        '    write: torch.amp.GradScaler("cuda")  [--write]',
        "both.py:3:8: warning [old-autocast] `torch.cuda.amp.autocast`: deprecated since torch "
        "2.4; the device is the first argument of torch.amp, so positional arguments must become "
        "keywords",
        "    write: torch.amp.autocast; not changed: `torch.cuda.amp.autocast` is used without "
        "being called",
        "2 places in 1 file: 1 for --write, 1 for you",
    ]
    assert migrate("clean.py").output == "nothing found in 1 file\n"


def test_write_changes_the_file_and_tells_what_is_left() -> None:
    result = migrate("--write", "both.py")

    assert Path("both.py").read_text() == NEW + "make = torch.cuda.amp.autocast\n"
    assert "old-grad-scaler" not in result.output
    assert "both.py:3:8: warning [old-autocast]" in result.output
    assert result.output.endswith("2 places in 1 file: 1 changed, 1 for you\n")
    assert {path.name for path in Path().iterdir()} == {
        "clean.py",
        "old.py",
        "both.py",
        "broken.py",
    }


def test_a_note_stays_behind_a_change_that_has_to_be_looked_at() -> None:
    text = "import apex, torch\nm = apex.parallel.DistributedDataParallel(m)\n"
    Path("ddp.py").write_text(text)

    before = migrate("ddp.py").output.splitlines()
    assert before[-3].endswith("DistributedDataParallel(m, broadcast_buffers=False)  [--write]")
    assert before[-2].startswith("    then check: if some parameters never get a gradient")
    assert before[-1] == "2 places in 1 file: 2 for --write (1 to look at), 0 for you"
    assert migrate("--write", "--ignore", "apex-ddp", "ddp.py").exit_code == 0

    Path("ddp.py").write_text(text)
    result = migrate("--write", "ddp.py")
    written = result.output.splitlines()
    assert result.exit_code == 1
    assert [line.endswith("[written]") for line in written] == [False, True, False, False]
    assert written[2] == before[-2]
    assert written[3] == "2 places in 1 file: 2 changed (1 to look at), 0 for you"
    assert migrate("--write", "ddp.py").exit_code == 0


def test_a_second_run_changes_nothing() -> None:
    migrate("--write", "old.py")
    before = os.stat("old.py")

    assert migrate("--write", "old.py").output == "nothing found in 1 file\n"
    assert (os.stat("old.py").st_ino, os.stat("old.py").st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_the_diff_is_a_patch() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hpc_amp", "migrate", "--diff", "old.py", "both.py"],
        capture_output=True,
        text=True,
        env=clean_environ(),
    )
    subprocess.run(["git", "apply", "-"], input=result.stdout, text=True, check=True)

    assert Path("old.py").read_text() == NEW
    assert Path("both.py").read_text() == NEW + "make = torch.cuda.amp.autocast\n"
    assert result.stderr == "3 places in 2 files: 2 for --write, 1 for you\n"


def test_a_patch_for_a_file_without_a_last_line_end() -> None:
    Path("old.py").write_text(OLD.rstrip("\n"))
    patch = migrate("--diff", "old.py").stdout

    subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True)

    assert Path("old.py").read_text() == NEW.rstrip("\n")


def test_json() -> None:
    assert json.loads(migrate("--json", "clean.py").output) == []
    first, second = json.loads(migrate("--json", "both.py").output)

    assert set(first) == {
        "id", "severity", "what", "why", "fix", "where", "file", "line", "column", "cell",
        "mechanical", "written", "note",
    }  # fmt: skip
    assert (first["file"], first["cell"], first["line"], first["column"]) == (
        "both.py",
        None,
        2,
        10,
    )
    assert (first["id"], first["mechanical"]) == ("old-grad-scaler", True)
    assert (second["id"], second["mechanical"]) == ("old-autocast", False)


@pytest.mark.parametrize(
    "data",
    [
        OLD.encode(),
        OLD.replace("\n", "\r\n").encode(),
        OLD.rstrip("\n").encode(),
        b"\xef\xbb\xbf" + OLD.encode(),
        b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + OLD.encode(),
        "# é €\n".encode() + OLD.encode() + b"\tif_ = [ 1,2 ]\n"[1:],
        b"#!/usr/bin/env python\n\n\n" + OLD.encode() + b"if scaler :\n\t  pass ;\n\n# end",
    ],
    ids=["lf", "crlf", "no last line end", "bom", "latin-1", "utf-8", "odd layout"],
)
def test_all_other_bytes_stay(data: bytes) -> None:
    Path("old.py").write_bytes(data)
    old, new = b"torch.cuda.amp.GradScaler()", b'torch.amp.GradScaler("cuda")'

    assert migrate("--write", "old.py").exit_code == 0
    assert Path("old.py").read_bytes() == data.replace(old, new)


def test_a_file_that_would_not_keep_its_bytes_is_reported_only() -> None:
    data = b"\x0c" + OLD.encode()
    Path("old.py").write_bytes(data)
    result = migrate("--write", "old.py")

    assert result.exit_code == 1
    assert "not changed: this file has control characters" in result.output
    assert Path("old.py").read_bytes() == data


def test_mode_and_links_stay() -> None:
    os.chmod("old.py", 0o751)
    os.symlink("old.py", "link.py")

    migrate("--write", "link.py")

    assert Path("link.py").is_symlink()
    assert Path("old.py").read_text() == NEW
    assert os.stat("old.py").st_mode & 0o777 == 0o751


def test_what_is_no_python_is_one_line_and_stays() -> None:
    result = migrate("--write", "broken.py", "old.py")

    assert result.stderr == (
        "hpc-amp: broken.py:2:1: not valid Python 3: Missing parentheses in call to 'print'. Did "
        "you mean print(...)?\n"
    )
    assert Path("broken.py").read_text() == BROKEN
    assert Path("old.py").read_text() == NEW


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", "not valid Python 3: "),
        (b"x = 1\0", "not valid Python 3: "),
        (b"# coding: nonsense\n", "not valid Python 3: "),
        (
            b"# one\n# caf\xe9\n",
            "odd.py:2: not valid Python 3: byte 0xe9 is not utf-8, and no other",
        ),
        (b"# coding: ascii\n# caf\xc3\xa9\n", "not valid Python 3: "),
        (b"# coding: gbk\n# \xff\xff\n", "not valid Python 3: "),
        (OLD.encode() + b"x = " + b"lambda: " * 5000 + b"1\n", "nested too deeply"),
        (OLD.encode() + b"x = " + b"1**" * 5000 + b"1\n", "nested too deeply"),
    ],
)
def test_other_bytes_are_one_line(data: bytes, message: str) -> None:
    Path("odd.py").write_bytes(data)
    result = migrate("odd.py")

    assert result.exit_code == 2
    assert result.stderr.startswith("hpc-amp: odd.py") and message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_folder_goes_on_behind_every_kind_of_bad_file(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {
        "a_latin.py": b"# caf\xe9\n",
        "b_deep.py": OLD.encode() + b"x = " + b"lambda: " * 5000 + b"1\n",
        "c_old.py": BROKEN.encode(),
        "d_notebook.ipynb": b"\xff",
        "e_defect.py": OLD.encode() + b"# one that no rule foresaw\n",
    }
    for name in ("src/z/last.py", "src/b_between.py", *(f"src/{name}" for name in bad)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(bad.get(Path(name).name, OLD.encode()))
    Path("src/gone.py").symlink_to("nowhere.py")
    os.mkfifo("src/pipe.py")
    real = files.scan_file

    def scan_file(path: Path, options: files.ScanOptions) -> files.Scanned:
        if path.name == "e_defect.py":
            raise TypeError("unforeseen")
        return real(path, options)

    monkeypatch.setattr(files, "scan_file", scan_file)
    result = migrate("--write", "src")
    lines = result.stderr.splitlines()

    assert result.exit_code == 2
    assert [line.partition("src/")[2].partition(".")[0] for line in lines] == [
        "a_latin", "b_deep", "c_old", "d_notebook", "e_defect", "gone",
    ]  # fmt: skip
    assert "TypeError: unforeseen, in test_migrate_cli.py:" in lines[4]
    assert Path("src/z/last.py").read_text() == Path("src/b_between.py").read_text() == NEW
    assert all(Path(f"src/{name}").read_bytes() == data for name, data in bad.items())

    again = migrate("--write", "src")
    assert (again.exit_code, again.stderr) == (2, result.stderr)
    assert again.stdout == "nothing found in 2 files\n"


def test_a_folder_that_cannot_be_read_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src/a/old.py", "src/b/old.py"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text(OLD)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path) == "src/a":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = migrate("--write", "src")

    assert result.exit_code == 2
    assert result.stderr == "hpc-amp: src/a cannot be read: Permission denied\n"
    assert Path("src/b/old.py").read_text() == NEW


def test_a_name_that_is_no_text_is_told() -> None:
    Path(os.fsdecode(b"caf\xe9.py")).write_text(OLD)
    Path(os.fsdecode(b"caf\xe8.py")).write_bytes(b"\xff")
    result = subprocess.run(
        [sys.executable, "-m", "hpc_amp", "migrate", "--write", "."],
        capture_output=True,
        env=clean_environ(),
    )

    assert result.returncode == 2
    assert b"Traceback" not in result.stderr
    assert Path(os.fsdecode(b"caf\xe9.py")).read_text() == NEW


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "none.py does not exist"),
        (["--ignore", "nonsense", "old.py"], "there is no rule 'nonsense'"),
        (["--torch", "new", "old.py"], "--torch new is not a version"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["migrate", *words], catch_exceptions=False, standalone_mode=False)


def test_the_oldest_torch_can_be_named() -> None:
    assert migrate("--torch", "2.3", "--write", "old.py").exit_code == 0
    Path("old.py").write_text(OLD)
    assert migrate("--torch", "2.2.1", "--write", "old.py").exit_code == 1
    assert Path("old.py").read_text() == OLD


def test_folders_without_hidden_ones_environments_and_runs() -> None:
    for name in (
        "src/a.py", "src/b/c.py", "src/.git/d.py", "src/venv/lib/e.py", "src/f.txt",
        "src/runs/x/1/code/g.py", "src/sweeps/x/1/snapshot/code/h.py",
    ):  # fmt: skip
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(OLD)
    for name in ("venv/pyvenv.cfg", "runs/x/1/job.json", "sweeps/x/1/campaign.json"):
        Path("src", name).touch()
    result = migrate("--write", "src")

    assert result.output == "2 places in 2 files: 2 changed, 0 for you\n"
    changed = {str(path) for path in Path("src").rglob("*.py") if path.read_text() == NEW}
    assert changed == {"src/a.py", "src/b/c.py"}


def test_a_file_that_is_named_twice_is_looked_at_once() -> None:
    assert migrate("old.py", "old.py", "old.py").output.count("old-grad-scaler") == 1


def test_odd_letters_do_not_reach_the_terminal() -> None:
    Path("odd.py").write_text("import torch\ntorch.cuda.amp.autocast('\x1b[31m')\n")

    assert "\x1b" not in migrate("odd.py").output


def test_a_script_without_a_suffix_is_read_if_it_is_named() -> None:
    Path("train").write_text("#!/usr/bin/env python3\n" + OLD)

    assert migrate("--write", "train").exit_code == 0
    assert Path("train").read_text() == "#!/usr/bin/env python3\n" + NEW


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": ["#"]}, *made]})


def test_a_notebook_is_reported_by_cell_and_never_changed() -> None:
    text = notebook(
        "!pip install x\nimport torch\n%matplotlib inline",
        "%%bash\nls | while read x; do echo torch.cuda.amp.GradScaler(); done",
        "files = !ls\ntorch?\n\nscaler = torch.cuda.amp.GradScaler()",
    )
    Path("nb.ipynb").write_text(text)
    result = migrate("--write", "nb.ipynb")

    assert result.exit_code == 1
    assert result.output.startswith("nb.ipynb:cell 3:4:10: warning [old-grad-scaler]")
    assert result.output.endswith("1 place in 1 file: 0 changed, 1 for you\n")
    assert Path("nb.ipynb").read_text() == text
    (finding,) = json.loads(migrate("--json", "nb.ipynb").output)
    assert (finding["cell"], finding["line"], finding["mechanical"]) == (3, 4, False)


SCALER = "s = torch.cuda.amp.GradScaler()"


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        (f"!pip install \\\n  torch \\\n  apex (\n{SCALER}", (4, 5)),
        (f"%%time\n{SCALER}", (2, 5)),
        (f"\n%%timeit -n 3\n{SCALER}", (3, 5)),
        (f"%%capture out\n!ls\n{SCALER}", (3, 5)),
        (f"x = 1\n%time {SCALER}", (2, 11)),
        (f"%timeit -n 10 -r 3 {SCALER}", (1, 24)),
        (f"%prun -s cumulative {SCALER}", (1, 25)),
        ("s = %time torch.cuda.amp.GradScaler()", (1, 11)),
        (f"if x:\n    !echo 'it is \\\n      more'\n    %time {SCALER}", (4, 15)),
        (f"print('%s'\n  % (1,))\n!ls\n{SCALER}", (4, 5)),
        (f"t = '''\n!none\n%none\n'''\n!echo \"don't (\n{SCALER}", (6, 5)),
        (f"a, b = !ls [\n{SCALER}", (2, 5)),
        (f"?torch\ntorch??\n%load_ext x (\n{SCALER}", (4, 5)),
        (f"await f()\n%time\n{SCALER}", (3, 5)),
    ],
)
def test_what_is_for_ipython_hides_no_python(cell: str, place: tuple[int, int]) -> None:
    Path("nb.ipynb").write_text(notebook("import torch", cell))
    result = migrate("--json", "nb.ipynb")

    assert result.exit_code == 1, result.stderr
    (finding,) = json.loads(result.output)
    assert (finding["cell"], finding["line"], finding["column"]) == (2, *place)


@pytest.mark.parametrize(
    "cell",
    [
        f"%%bash\n{SCALER}",
        f"%%writefile train.py\n{SCALER}\nbad (",
        f"%%html\n<p>{SCALER}",
        f"!echo {SCALER} \\\n{SCALER}",
        f"%run {SCALER}",
    ],
)
def test_what_is_no_python_in_a_notebook_is_left_out(cell: str) -> None:
    Path("nb.ipynb").write_text(notebook("import torch", cell))

    assert migrate("nb.ipynb").output == "nothing found in 1 file\n"


def test_a_notebook_in_another_language_is_left_out() -> None:
    text = json.loads(notebook("library(x)", "y <- torch.cuda.amp.GradScaler()"))
    text["metadata"] = {"kernelspec": {"name": "ir", "language": "R"}}
    Path("nb.ipynb").write_text(json.dumps(text))

    assert migrate("nb.ipynb").output == "nothing found in 1 file\n"


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"cells": [{"cell_type": "code"}]}'])
def test_what_is_no_notebook_is_one_line(text: str) -> None:
    Path("nb.ipynb").write_text(text)
    result = migrate("nb.ipynb")

    assert result.exit_code == 2
    assert result.stderr == "hpc-amp: nb.ipynb is not a notebook of version 4\n"


def test_an_expression_of_a_thousand_terms_is_one_line() -> None:
    Path("deep.py").write_text(OLD + "x = " + " + ".join(["1"] * 3000) + "\n")
    result = migrate("deep.py")

    assert result.exit_code == 2
    assert result.stderr == "hpc-amp: deep.py contains an expression that is nested too deeply\n"


def test_a_cell_that_is_no_python_is_named() -> None:
    Path("nb.ipynb").write_text(notebook("x = 1", "print 'x'"))

    assert migrate("nb.ipynb").stderr.startswith("hpc-amp: nb.ipynb:cell 2:1:1: not valid Python")


def test_a_bad_cell_hides_no_other() -> None:
    Path("nb.ipynb").write_text(notebook("import torch", "print 'x'\nx = 1", "ls -l x.txt", SCALER))
    result = migrate("nb.ipynb")

    assert result.exit_code == 2
    told = [line.partition(": not valid")[0] for line in result.stderr.splitlines()]
    assert told == ["hpc-amp: nb.ipynb:cell 2:1:1", "hpc-amp: nb.ipynb:cell 3:1:7"]
    assert result.stdout.startswith("nb.ipynb:cell 4:1:5: warning [old-grad-scaler]")


def test_without_libcst_one_line_says_how_to_install_it() -> None:
    hide = "import sys; sys.modules['libcst'] = None; from hpc_amp.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", hide, "migrate", "old.py"],
        capture_output=True,
        text=True,
        env=clean_environ(),
    )

    assert result.returncode == 2
    assert result.stderr == ("hpc-amp: libcst is not installed; pip install 'hpc-amp[migrate]'\n")


def test_it_needs_no_torch() -> None:
    loaded = (
        "import sys; sys.argv[1:] = ['migrate', 'both.py']\n"
        "from hpc_amp.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, env=clean_environ()
    )

    assert result.stdout.splitlines()[-1] == "1 False", result.stderr
