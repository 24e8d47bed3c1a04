"""The lock of a campaign: one command at a time submits or cancels its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.locks import UnsupportedLocksError, lock


@contextmanager
def holding(description: Path, what: str) -> Iterator[None]:
    """Lock the file `description` of a campaign for this process. The kernel releases the lock when
    the process ends. Raises UsageError if another process has it, also on another machine if the
    file system supports that. `what` names the runs in the message."""
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
