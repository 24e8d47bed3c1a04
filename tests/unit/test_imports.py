"""What the command line imports: a login node answers at once, and has no torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.stubs import RUN_ID, StubHost

# Everything outside the standard library and the package itself. A new name here is a decision.
ALLOWED = {
    "help": {"click"},
    "dry run": {"click", "yaml", "_yaml", "jinja2", "markupsafe"},
}
# What every Python process has, and what Cython registers for the C half of PyYAML.
ALWAYS = {"__main__", "hpc_amp", "cython_runtime"}
DUMP = (
    "import atexit, json, sys; before = set(sys.modules); out = open(sys.argv.pop(1), 'w')\n"
    "atexit.register(lambda: json.dump(sorted(set(sys.modules) - before), out))\n"
    "from hpc_amp.cli import main; main()"
)


def imported(host: StubHost, *words: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    path = host.folder / "modules.json"
    result = host.python("-c", DUMP, str(path), *words)
    assert result.returncode == 0, result.stderr
    return set(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("case", "words"),
    [("help", ["--help"]), ("dry run", ["submit", "job.yaml", "--dry-run", "--run-id", RUN_ID])],
)
def test_only_what_is_on_the_list_is_imported(host: StubHost, case: str, words: list[str]) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})

    modules = imported(host, *words)

    third_party = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - ALWAYS
    third_party -= {name for name in third_party if name.startswith("_cython_")}
    assert third_party <= ALLOWED[case]
    assert "hpc_amp.cli.app" in modules
    assert not {name for name in modules if name.startswith("hpc_amp.train")}


def test_the_list_holds_no_more_than_is_imported(host: StubHost) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})

    modules = imported(host, "submit", "job.yaml", "--dry-run")

    assert {name.partition(".")[0] for name in modules} >= ALLOWED["dry run"] - {"_yaml"}


def test_submit_needs_no_torch(host: StubHost, tmp_path: Path) -> None:
    """Not even where it is installed and broken."""
    for name in ("torch", "torchvision", "numpy", "pydantic", "submitit", "rich", "tensorboard"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('must not be imported')\n")
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})
    path = f"{tmp_path}:{host.environ()['PYTHONPATH']}"

    for words in (["submit", "job.yaml"], ["status"], ["logs", "test"], ["cancel", "test"]):
        result = host.hpc_amp(*words, PYTHONPATH=path)
        assert result.returncode == 0, result.stderr
