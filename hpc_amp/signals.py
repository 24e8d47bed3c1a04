"""Signal handling of commands."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
def interrupted_by_all() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does. Only the first
    of them does: a terminal that is closed sends several. One that this process was started to
    ignore, such as SIGHUP by `nohup`, stays ignored. A closed output raises BrokenPipeError instead
    of ending this process."""

    def first(number: int, frame: FrameType | None) -> NoReturn:
        for one in heeded:
            signal.signal(one, _do_nothing)
        raise KeyboardInterrupt

    heeded = not_ignored((signal.SIGTERM, signal.SIGHUP))
    with handling({**dict.fromkeys(heeded, first), signal.SIGPIPE: signal.SIG_IGN}):
        yield


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those of the signals that this process does not ignore, as `nohup` lets it ignore SIGHUP."""
    return [one for one in numbers if signal.getsignal(one) is not signal.SIG_IGN]


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A signal handler. Unlike an ignored signal, it is not inherited by programs."""


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt at the end of the block, not in it: in the middle of
    `process = Popen(...)`, it would leave a program that nobody knows. Signals are not blocked,
    because the program would inherit that, and another thread of this process would get them."""
    is_main = threading.current_thread() is threading.main_thread()  # no other gets Ctrl-C
    came: list[int] = []
    numbers = not_ignored([signal.SIGINT]) if is_main else []
    try:
        with handling({one: lambda number, frame: came.append(number) for one in numbers}):
            yield
    finally:
        if came:
            raise KeyboardInterrupt


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
