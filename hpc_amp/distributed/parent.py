"""Ending with the process that started this one."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send a signal when the parent dies. A killed torchrun would leave its ranks
    behind, training on in a directory that the next attempt writes to."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
