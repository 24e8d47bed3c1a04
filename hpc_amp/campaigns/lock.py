"""The lock of a campaign: one command at a time submits or cancels its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_amp.errors import UsageError
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
