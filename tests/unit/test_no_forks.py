"""A fork beside threads may stand still for ever: nothing forks where threads are."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import chain
from pathlib import Path

from support.environment import REPOSITORY, clean_environ

FORKING = {"fork", "forkpty", "preexec_fn", "DataLoader", "Process", "Pool", "ProcessPoolExecutor"}
ALLOWED = {("hpc_amp/distributed/supervise.py", "preexec_fn")}
"""Where no other thread lives."""


def test_no_code_of_the_job_side_forks() -> None:
    """A fork beside threads may stand still for ever: starting a program is safe, a fork is not."""
    found = set()
    parts = ("distributed", "amp", "train", "tasks", "data", "models")
    folders = [REPOSITORY / "examples", *(REPOSITORY / "hpc_amp" / part for part in parts)]
    for file in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(file.read_text())):
            names = {getattr(node, field, None) for field in ("id", "attr", "arg", "name")}
            found |= {(str(file.relative_to(REPOSITORY)), str(name)) for name in names & FORKING}
    assert found == ALLOWED


def test_a_supervisor_has_no_threads(tmp_path: Path) -> None:
    """So that the fork in it is one without threads beside it."""
    code = (
        "import os, sys\n"
        "from hpc_amp.distributed import exec\n"
        "from hpc_amp.distributed.labels import LabelledOutput\n"
        "from hpc_amp.distributed.supervise import supervise\n"
        "note = lambda: print(len(os.listdir('/proc/self/task')), flush=True)\n"
        "os.register_at_fork(before=note)\n"
        "sys.exit(supervise(['true'], os.environ, lambda: None, output=LabelledOutput(1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["1"]
