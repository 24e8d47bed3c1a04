"""`hpc-amp ...` in forks of one process that has imported its modules.

A third of a second of each command is its start, and the tests run two thousand. A fork has its own
arguments, environment, folder and output, and runs `python -m hpc_amp` from its first line on. What
depends on how Python starts is started anew: with another locale, with PYTHON... variables besides
the search path, or with a sitecustomize.py in that. Tests of the start itself, of signals and of
terminals start processes.
"""

from __future__ import annotations

import atexit
import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.environment import REPOSITORY, clean_environ
from support.warm import Warm

PATIENT = (
    "-c",
    "from hpc_amp.jobs import image_check\nimage_check.LOOK_SECONDS = 600\n"
    "from hpc_amp.cli import main\nmain()",
)
"""Words before those of `hpc_amp` with which `python` waits for an image as long as it takes."""


def hpc_amp(
    *words: str, cwd: Path, environ: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python -m hpc_amp WORDS` to its end: see `python`."""
    return python("-m", "hpc_amp", *words, cwd=cwd, environ=environ, timeout=timeout)


def python(
    *words: str, cwd: Path, environ: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python WORDS` to its end, with its output as text: `-m` and a module, `-c` and a program, or
    a script. `environ` is the whole environment. Raises subprocess.TimeoutExpired."""
    if _start_of(environ) != _start_of(clean_environ()) or not _may_fork(environ):
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            text=True,
            capture_output=True,
            timeout=timeout,
        )
    return server().run_with(environ, *words, cwd=cwd, timeout=timeout)


def _start_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python reads when it starts, less the search path."""
    prefixes = ("PYTHON", "LC_", "LANG", "LD_")
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(prefixes) and name != "PYTHONPATH"
    }


def _may_fork(environ: Mapping[str, str]) -> bool:
    """Whether `hpc_amp` is the one that the process has imported, and nothing in the search path
    wants to be run when Python starts."""
    search = environ.get("PYTHONPATH", "").split(":")
    return str(REPOSITORY) in search and not any(
        Path(folder, "sitecustomize.py").exists() for folder in search
    )


@functools.cache
def server() -> Warm:
    """The process that forks commands."""
    made = Warm("commands", {})
    atexit.register(made.close)
    return made
