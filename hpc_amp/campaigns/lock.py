"""What a command that submits runs of a campaign begins with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.attempts import read_json
from hpc_amp.locks import UnsupportedLocksError, lock


@contextmanager
def holding(description: Path, what: str) -> Iterator[None]:
    """Hold a folder by its description for this process; the kernel lets it go however the process
    ends. Raises UsageError where another one holds it, also on another machine if the file system
    can tell."""
    folder = description.parent
    try:
        held = description.open("r+b")  # NFS locks only what can be written
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    with held:
        try:
            is_locked = lock(held.fileno(), wait=False)
        except UnsupportedLocksError:
            is_locked = True  # without locks, users have to run one command at a time themselves
        if not is_locked:
            raise UsageError(
                f"another command is submitting {what} of {folder}",
                hint="wait for it, or end it with Ctrl-C",
            )
        yield


def refuse_elsewhere(folder: Path, run_dirs: Iterable[Path]) -> None:
    """Raises UsageError where a campaign is not in the folder that it was started in, as its runs
    tell: their scripts and jobs would work there."""
    for run_dir in run_dirs:
        if os.path.isfile(run_dir / "job.json"):
            # A command that was killed may have left one unwritten.
            recorded = rundir.origin(run_dir, read_json(run_dir / "job.json"))
            if recorded is not None:
                there = Path(os.path.normpath(recorded / os.path.relpath(folder, run_dir)))
                rundir.refuse_copy(folder, there)
