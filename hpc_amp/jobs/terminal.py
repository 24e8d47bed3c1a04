"""This terminal, while it is a node's: commands that take it over, and commands that have to be
watched meanwhile.

Some schedulers' commands for an interactive job (`Interactive.is_watched`) run on a terminal of
their own, and this copies between it and the user's. Ctrl-C has one meaning everywhere: while the
job waits, it withdraws the request; once the node's terminal is here, it is input like any other,
for whatever runs there.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.base import Interactive
from hpc_amp.signals import INTERRUPTING, Handler, handling

_INTERRUPT = re.compile(rb"[\x03\x1c]")  # Ctrl-C, Ctrl-\
# What ssh may ask before there is a shell. The answer is the user's to give.
_QUESTION = re.compile(rb"(yes/no|passw|passphrase|passcode|verification code)[^\r\n]*$", re.I)
_HEARD = 1 << 16
_SILENT_SECONDS = 3.0
_ID_SECONDS = 10.0
# While a job is deleted: who closes a window may say so several times, and to the
# command that deletes it, too. Ctrl-C
# ends what takes too long.
_DEAF: dict[signal.Signals, Handler] = {
    signal.SIGTERM: signal.SIG_IGN,
    signal.SIGHUP: signal.SIG_IGN,
    signal.SIGINT: signal.default_int_handler,
}


class SessionInterrupted(Exception):
    """A signal, or Ctrl-C while the job waited, ended the session. `job_id` is out of the queue."""

    def __init__(self, number: int, job_id: str | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.job_id = job_id


def is_terminal() -> bool:
    """Whether there is somebody who types and sees."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def tell(text: str) -> None:
    """A line of ours, wherever the cursor was left; nobody hears it where the window was closed."""
    with contextlib.suppress(OSError):
        print(f"\n{text}", file=sys.stderr, flush=True)


def _find(how: Interactive) -> None:
    if shutil.which(how.command[0], path=how.environ.get("PATH", os.defpath)) is None:
        raise SchedulerError(
            f"`{how.command[0]}` is not on this machine's PATH",
            hint="call it from a login node, or say --here",
        )


def run(how: Interactive) -> tuple[int, bool]:
    """A command that takes over the terminal by itself: its exit status, and whether Ctrl-C was
    pressed while this terminal was not a node's. From here on, this process ignores Ctrl-C."""
    _find(how)
    interrupted = False
    told = 0
    process: subprocess.Popen[bytes] | None = None

    def note(number: int, frame: FrameType | None) -> None:
        # The command has the signal, too: it belongs to the same terminal.
        nonlocal interrupted
        interrupted = True

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = number
        if process is None:
            return
        process.send_signal(how.end_signal or number)
        if how.end_signal is not None:
            # Who closes a window sends its signal to the command, too, which may undo this one.
            again = threading.Timer(1.0, process.send_signal, (how.end_signal,))
            again.daemon = True
            again.start()

    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, note)
    with _kept_settings(), handling({signal.SIGTERM: forward, signal.SIGHUP: forward}):
        process = subprocess.Popen(how.command, env=dict(how.environ))
        status = process.wait()
    # Each process of a terminal gets the signal by itself, this one perhaps after the command has
    # ended with a status of its own.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if told and status == 0:
        status = 128 + told  # some commands end as if all were well
    return (128 - status if status < 0 else status), interrupted


def watch(how: Interactive, cancel: Callable[[str], None]) -> int:
    """A command that has to be watched: its exit status. `cancel` ends the job of an id. Raises
    SessionInterrupted."""
    _find(how)
    size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
    pid, terminal = pty.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execvpe(how.command[0], how.command, dict(how.environ))
        os._exit(127)
    watched = _Watched(how, pid, terminal)

    def end(number: int, frame: FrameType | None) -> None:
        watched.leave(number, _ID_SECONDS)

    def resize(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            new = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, new)

    handlers = dict.fromkeys(INTERRUPTING, end)
    try:
        with handling({**handlers, signal.SIGWINCH: resize}):
            try:
                with _kept_settings():
                    resize(signal.SIGWINCH, None)  # it may have changed just before
                    tty.setraw(0, termios.TCSANOW)  # what was typed by now is not lost
                    return watched.copy()
            except SessionInterrupted as interrupted:
                with handling(_DEAF):
                    try:
                        if watched.job_id is not None:
                            cancel(watched.job_id)
                    finally:
                        watched.kill()
                raise SessionInterrupted(interrupted.number, watched.job_id) from None
    finally:
        os.close(terminal)
        watched.close()


@dataclass
class _Watched:
    """A command on a terminal of its own, and what is known of it by what it has printed."""

    how: Interactive
    pid: int
    terminal: int
    job_id: str | None = None
    heard: bytes = b""
    ready_at: float | None = None
    has_typed: bool = False
    wants_out: int | None = None
    """The signal that ends this as soon as the id is known, or at `out_by`."""
    out_by: float = math.inf
    is_open: bool = True
    """Whether the user's terminal is still there."""
    ahead: bytearray = field(default_factory=bytearray)
    """What was typed before there was anybody to read it."""
    pending: bytearray = field(default_factory=bytearray)
    """What the command's terminal has no room for yet."""

    def __post_init__(self) -> None:
        self.wakes, self.wake = os.pipe()  # a signal ends the waiting for other descriptors
        os.set_blocking(self.wake, False)

    def close(self) -> None:
        """What was opened here."""
        os.close(self.wakes)
        os.close(self.wake)

    def leave(self, number: int, patience: float = math.inf) -> None:
        """End this with SessionInterrupted. Without an id the job may be in the queue or not: the
        command's next line tells, for which there are `patience` seconds. Signal handlers call
        it."""
        self.wants_out = self.wants_out or number
        self.out_by = min(self.out_by, time.monotonic() + patience)
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake, b"!")

    def copy(self) -> int:
        """Until the command has ended: its exit status."""
        os.set_blocking(self.terminal, False)
        self.has_typed = not self.how.typed
        while True:
            writing = [self.terminal] if self.pending else []
            reading = [self.wakes, self.terminal, *([0] if self.is_open else [])]
            readable, writable, _ = select.select(reading, writing, [], 0.5)
            if self.wakes in readable:
                os.read(self.wakes, 65536)
            if 0 in readable:
                self._take(_read(0))
            if self.terminal in readable:
                data = _read(self.terminal)
                if not data:
                    return self._status(os.waitpid(self.pid, 0)[1])
                self._show(data)
            elif not readable:
                # What it left behind may still hold its terminal.
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return self._status(status)
            if self.terminal in writable:
                with contextlib.suppress(BlockingIOError):
                    del self.pending[: os.write(self.terminal, self.pending)]
            self._type()
            known = self.job_id is not None or time.monotonic() >= self.out_by
            if self.wants_out is not None and known:
                raise SessionInterrupted(self.wants_out)

    def kill(self) -> None:
        """End the command at once: at SIGINT, some ask whether that is meant."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _status(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _take(self, data: bytes) -> None:
        """From the keyboard."""
        if not data:
            self._hang_up()
        elif self.ready_at is not None:
            self.pending += data
        elif self.wants_out is not None:
            self.pending += data  # no id comes: the command shall deal with it
        elif _INTERRUPT.search(data):
            self.leave(signal.SIGINT)
        else:
            self.ahead += data

    def _hang_up(self) -> None:
        self.is_open = False
        self.leave(signal.SIGHUP, _ID_SECONDS)

    def _show(self, data: bytes) -> None:
        """From the command."""
        if self.is_open:
            try:
                _write(data)
            except OSError:
                self._hang_up()
        if self.ready_at is not None and self.has_typed:
            return
        self.heard = (self.heard + data)[-_HEARD:]
        if self.ready_at is None:
            waiting = re.search(self.how.job_id.encode(), self.heard)
            if waiting is not None:
                self.job_id = waiting[1].decode(errors="replace")
            ready = re.search(self.how.ready.encode() + rb"[\r\n]", self.heard)
            if ready is not None:
                self.ready_at = time.monotonic()
                self.heard = self.heard[ready.end() :]

    def _type(self) -> None:
        """The command's words, once a shell is there: it has said something, or is a silent one."""
        if self.ready_at is None:
            return
        if not self.has_typed:
            said = bool(self.heard.strip()) and not _QUESTION.search(self.heard)
            silent = not self.heard.strip()
            if said or (silent and time.monotonic() - self.ready_at > _SILENT_SECONDS):
                self.pending += self.how.typed.encode() + b"\r"
                self.has_typed = True
        if self.has_typed and self.ahead:
            self.pending += self.ahead
            self.ahead.clear()


def _read(descriptor: int) -> bytes:
    """Empty where the other side is gone."""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how a terminal ends
        return b""


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


@contextlib.contextmanager
def _kept_settings() -> Iterator[None]:
    """The terminal is as it was afterwards, also where a command left it raw."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    in_front = os.tcgetpgrp(0) == os.getpgrp()
    try:
        yield
    finally:
        # A shell that was killed has not given the terminal back; whoever changes a terminal that
        # is not theirs is stopped by this signal.
        stops = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error, OSError):
            if in_front:
                os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTTOU, stops)
