"""How the process of a rank ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_process(status: int) -> NoReturn:
    """End at once, with what was said on its way. Other ranks may be waiting for this one, and an
    orderly exit would wait for them in turn; gloo's threads may also hang or abort it."""
    for stream in (sys.stdout, sys.stderr):
        # A log that cannot be written, on a full disk, must not change the exit status.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send a signal when the parent dies. A killed torchrun would leave its ranks
    behind, training on in a directory that the next attempt writes to."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
