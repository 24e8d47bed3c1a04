"""Run the command of an interactive job on the user's terminal (`hpc-amp shell`).

Most commands use the user's terminal themselves (`run`). Some schedulers' commands have to be
watched (`Interactive.is_watched`): they run on a pseudo-terminal, and `watch` copies between it and
the user's terminal. In both cases Ctrl-C deletes the job while it waits in the queue. Once the
shell on the node has started, Ctrl-C is input for the program that runs there.
"""

from __future__ import annotations

import contextlib
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
from hpc_amp.pseudo_terminal import copy_window_size, read_available
from hpc_amp.schedulers.base import Interactive
from hpc_amp.signals import INTERRUPTING, Handler, handling

_INTERRUPT = re.compile(rb"[\x03\x1c]")  # Ctrl-C, Ctrl-\
# Questions that ssh may ask before the shell starts. Only the user can answer them.
_QUESTION = re.compile(rb"(yes/no|passw|passphrase|passcode|verification code)[^\r\n]*$", re.I)
_KEPT_OUTPUT = 1 << 16
_SILENT_SECONDS = 3.0
_ID_SECONDS = 10.0
# Handlers while a job is deleted. A window that is closed may send its signals several times, also
# to the command that deletes the job, so they are ignored. Ctrl-C ends the deletion.
_WHILE_DELETING: dict[signal.Signals, Handler] = {
    signal.SIGTERM: signal.SIG_IGN,
    signal.SIGHUP: signal.SIG_IGN,
    signal.SIGINT: signal.default_int_handler,
}


class SessionInterrupted(Exception):
    """A signal, or Ctrl-C while the job waited, ended the session. `number` is the signal. The job
    `job_id`, if it is known, has been deleted."""

    def __init__(self, number: int, job_id: str | None = None) -> None:
        super().__init__(number)
        self.number = number
        self.job_id = job_id


def is_terminal() -> bool:
    """Whether both input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def tell(text: str) -> None:
    """Print a message on a line of its own. Does nothing if the terminal was closed."""
    with contextlib.suppress(OSError):
        print(f"\n{text}", file=sys.stderr, flush=True)


def _check_installed(how: Interactive) -> None:
    if shutil.which(how.command[0], path=how.environ.get("PATH", os.defpath)) is None:
        raise SchedulerError(
            f"`{how.command[0]}` is not on this machine's PATH",
            hint="call it from a login node, or add --here",
        )


def run(how: Interactive) -> tuple[int, bool, int]:
    """Run a command that uses the user's terminal itself.

    Returns its exit status, whether Ctrl-C reached this process, which only happens while the
    terminal does not belong to a program on the node, and the number of the signal (SIGTERM, or
    SIGHUP of a window that was closed) that was passed on to it, or 0. Afterwards this process
    ignores Ctrl-C. Raises SchedulerError if the command is not installed.
    """
    _check_installed(how)
    interrupted = False
    forwarded = 0
    process: subprocess.Popen[bytes] | None = None

    def note(number: int, frame: FrameType | None) -> None:
        # The terminal sends the signal to the command too.
        nonlocal interrupted
        interrupted = True

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal forwarded
        forwarded = number
        if process is None:
            return
        process.send_signal(how.end_signal or number)
        if how.end_signal is not None:
            # A window that is closed also sends its signal to the command, which may cancel the
            # effect of this one.
            again = threading.Timer(1.0, process.send_signal, (how.end_signal,))
            again.daemon = True
            again.start()

    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, note)
    with _kept_settings(), handling({signal.SIGTERM: forward, signal.SIGHUP: forward}):
        process = subprocess.Popen(how.command, env=dict(how.environ))
        status = process.wait()
    # A terminal sends a signal to each of its processes separately. This process may receive it
    # after the command has ended.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    return (128 - status if status < 0 else status), interrupted, forwarded


def watch(how: Interactive, cancel: Callable[[str], None]) -> int:
    """Run a command on a pseudo-terminal, and copy between it and the user's terminal.

    Returns its exit status. `cancel` deletes the job of an id. Raises SessionInterrupted if a
    signal or Ctrl-C ends the session, and SchedulerError if the command is not installed.
    """
    _check_installed(how)
    users_terminal = os.dup(0)
    pid, terminal = pty.fork()
    if pid == 0:
        copy_window_size(users_terminal, 0)
        os.close(users_terminal)
        with contextlib.suppress(OSError):
            os.execvpe(how.command[0], how.command, dict(how.environ))
        os._exit(127)
    os.close(users_terminal)
    watched = _Watched(how, pid, terminal)

    def end(number: int, frame: FrameType | None) -> None:
        watched.leave(number, _ID_SECONDS)

    def resize(number: int, frame: FrameType | None) -> None:
        copy_window_size(0, terminal)

    handlers = dict.fromkeys(INTERRUPTING, end)
    try:
        with handling({**handlers, signal.SIGWINCH: resize}):
            try:
                with _kept_settings():
                    copy_window_size(0, terminal)  # it may have changed before the handler was set
                    tty.setraw(0, termios.TCSANOW)  # unlike TCSAFLUSH, this keeps typed input
                    return watched.copy()
            except SessionInterrupted as interrupted:
                with handling(_WHILE_DELETING):
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
    """A command on a pseudo-terminal, and the facts that its output has shown."""

    how: Interactive
    pid: int
    terminal: int
    job_id: str | None = None
    output: bytes = b""
    """The end of the output, until the shell is ready."""
    ready_at: float | None = None
    """When the shell on the node became ready, by the monotonic clock."""
    has_typed: bool = False
    """Whether `how.typed` was sent."""
    leave_signal: int | None = None
    """The signal that ends the session once the job's id is known, or at `leave_by`."""
    leave_by: float = math.inf
    is_open: bool = True
    """Whether the user's terminal is still open."""
    ahead: bytearray = field(default_factory=bytearray)
    """Input that was typed before the shell was ready."""
    pending: bytearray = field(default_factory=bytearray)
    """Input that the pseudo-terminal has no room for yet."""

    def __post_init__(self) -> None:
        # A signal handler writes to this pipe, which ends a wait in `select`.
        self.wakes, self.wake = os.pipe()
        os.set_blocking(self.wake, False)

    def close(self) -> None:
        """Close the descriptors that this object opened."""
        os.close(self.wakes)
        os.close(self.wake)

    def leave(self, number: int, patience: float = math.inf) -> None:
        """Make `copy` raise SessionInterrupted for the signal `number`. If the job's id is not
        known yet, `copy` first waits for it, at most `patience` seconds: without it, the job could
        not be deleted. Signal handlers call this."""
        self.leave_signal = self.leave_signal or number
        self.leave_by = min(self.leave_by, time.monotonic() + patience)
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake, b"!")

    def copy(self) -> int:
        """Copy input and output until the command has ended. Returns its exit status. Raises
        SessionInterrupted after `leave`."""
        os.set_blocking(self.terminal, False)
        self.has_typed = not self.how.typed
        while True:
            writing = [self.terminal] if self.pending else []
            reading = [self.wakes, self.terminal, *([0] if self.is_open else [])]
            readable, writable, _ = select.select(reading, writing, [], 0.5)
            if self.wakes in readable:
                os.read(self.wakes, 65536)
            if 0 in readable:
                self._take(read_available(0))
            if self.terminal in readable:
                data = read_available(self.terminal)
                if not data:
                    return self._status(os.waitpid(self.pid, 0)[1])
                self._show(data)
            elif not readable:
                # A process that the command left behind may keep the pseudo-terminal open.
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return self._status(status)
            if self.terminal in writable:
                with contextlib.suppress(BlockingIOError):
                    del self.pending[: os.write(self.terminal, self.pending)]
            self._type()
            settled = self.job_id is not None or time.monotonic() >= self.leave_by
            if self.leave_signal is not None and settled:
                raise SessionInterrupted(self.leave_signal)

    def kill(self) -> None:
        """Kill the command. Some commands would answer SIGINT with a question."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _status(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _take(self, data: bytes) -> None:
        """Handle input from the user's terminal."""
        if not data:
            self._hang_up()
        elif self.ready_at is not None:
            self.pending += data
        elif self.leave_signal is not None:
            self.pending += data  # the id is late: let the command handle a second Ctrl-C
        elif _INTERRUPT.search(data):
            self.leave(signal.SIGINT)
        else:
            self.ahead += data

    def _hang_up(self) -> None:
        self.is_open = False
        self.leave(signal.SIGHUP, _ID_SECONDS)

    def _show(self, data: bytes) -> None:
        """Handle output of the command."""
        if self.is_open:
            try:
                _write(data)
            except OSError:
                self._hang_up()
        if self.ready_at is not None and self.has_typed:
            return
        self.output = (self.output + data)[-_KEPT_OUTPUT:]
        if self.ready_at is None:
            waiting = re.search(self.how.job_id.encode(), self.output)
            if waiting is not None:
                self.job_id = waiting[1].decode(errors="replace")
            ready = re.search(self.how.ready.encode() + rb"[\r\n]", self.output)
            if ready is not None:
                self.ready_at = time.monotonic()
                self.output = self.output[ready.end() :]

    def _type(self) -> None:
        """Send `how.typed` once the shell on the node runs: after its first output, or after some
        seconds if it prints nothing. Then send what the user typed ahead."""
        if self.ready_at is None:
            return
        if not self.has_typed:
            printed = bool(self.output.strip())
            if printed:
                ready = not _QUESTION.search(self.output)
            else:
                ready = time.monotonic() - self.ready_at > _SILENT_SECONDS
            if ready:
                self.pending += self.how.typed.encode() + b"\r"
                self.has_typed = True
        if self.has_typed and self.ahead:
            self.pending += self.ahead
            self.ahead.clear()


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


@contextlib.contextmanager
def _kept_settings() -> Iterator[None]:
    """Restore the terminal's settings after the block, in case that a command left it in raw
    mode."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    in_front = os.tcgetpgrp(0) == os.getpgrp()
    try:
        yield
    finally:
        # A shell that was killed did not give the terminal back to this process group. A process
        # outside the terminal's foreground group that changes its settings gets SIGTTOU, which
        # would stop it.
        stops = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error, OSError):
            if in_front:
                os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTTOU, stops)
