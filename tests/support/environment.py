"""Environments for commands under test."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "OMPI_", "PMI", "PALS_", "XDG_", "APPTAINER")
_PREFIXES += ("SINGULARITY", "HPC_AMP_")
_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


LOGOUT = """\
# Like Debian's default file, which clears a console that is not there.
if [ "$SHLVL" = 1 ]; then
    false
fi
"""
"""`~/.bash_logout` of a new user: where it is the last command of a shell, the shell fails."""


def clean_environ(**more: str) -> dict[str, str]:
    """This process's environment with the checkout on the search path, and without what a
    scheduler, a launcher or another hpc-amp left behind."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("HPC_AMP_CLUSTER_")
        or name == "XDG_STATE_HOME"
        or (not name.startswith(_PREFIXES) and name not in _NAMES)
    }
    return {**kept, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8", **more}


def in_ci() -> bool:
    """Whether a missing tool is a failure and not a reason to skip."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def require_program(name: str) -> None:
    """Skip the test where a program is missing; in CI that is a failure."""
    if shutil.which(name) is not None:
        return
    reason = f"{name} is missing: apt-get install {name}"
    if in_ci():
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    """`contextlib.chdir`, which Python 3.10 does not have."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
