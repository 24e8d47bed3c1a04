"""How the process of a rank ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PARENT = "HPC_AMP_PARENT"
"""The variable in which a parent gives its process id to a rank (`end_with_parent`)."""
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_process(status: int) -> NoReturn:
    """Flush the output and end the process at once.

    An orderly exit would wait for other ranks, which may be waiting for this one. gloo's threads
    may also hang or abort it.
    """
    for stream in (sys.stdout, sys.stderr):
        # If the disk is full, the log cannot be written. That must not change the exit status.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def end_with_parent(number: signal.Signals = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel send a signal when the parent process dies. Otherwise, the ranks of a killed
    torchrun would go on training in a directory that the next attempt writes to.

    `parent` is its process id, for a caller that knows it. If that process has died before this
    call, no signal will come, and this process ends at once.
    """
    if parent is None:
        parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)
