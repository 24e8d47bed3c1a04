"""Signal handling of commands."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object] | signal.Handlers

INTERRUPTING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""The signals by which a user or a system ends a command."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A signal handler that raises KeyboardInterrupt for any signal, as Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install signal handlers for the duration of the block, then restore the previous ones."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Block the signals of `INTERRUPTING` until the end of the block. Programs started in the block
    inherit the mask. They need it too: Ctrl-C reaches the whole process group, and a submit command
    that dies may already have submitted its job."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
