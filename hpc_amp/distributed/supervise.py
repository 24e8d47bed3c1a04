"""Runs a rank's program as a child process, to label its output and to understand its exit status.

Every launcher treats a status other than 0 as a crash, and kills the ranks that are still saving.
So a user's own program that stops at a checkpoint, with status 75, reports 0 to the launcher, and
rank 0 creates a file for the launch script. Any other exit status and any signal reach the launcher
unchanged.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from hpc_amp.distributed.labels import PATIENCE, LabelledOutput, ready

EXIT_CHECKPOINTED = 75
FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_WAIT_FOR_OTHERS = 0.1
"""Seconds after which a signal for all processes of a rank has reached all of them."""


def supervise(
    command: list[str],
    environment: Mapping[str, str],
    prepare: Callable[[], None],
    *,
    may_stop: bool = False,
    mark: str | None = None,
    output: LabelledOutput | None = None,
) -> int:
    """Run a command, forward signals to it, and return the exit status for the launcher. If a
    signal ends the command, this process ends by the same signal.

    `prepare`: runs in the child before the command.
    `may_stop`: whether a status of 75 means that the program stopped at a checkpoint.
    `mark`: a file to create then. If that fails, the status is returned as it is.
    `output`: labels the output. By default the command has the output of this process.

    Raises OSError if the command cannot be run.
    """
    before = {number: signal.signal(number, _do_nothing) for number in FORWARDED}
    signal.signal(signal.SIGCHLD, _do_nothing)

    def become_the_command() -> None:
        for number, handler in before.items():
            ignored = handler is signal.SIG_IGN  # such as SIGHUP by nohup
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        prepare()

    with _arriving_signals() as signals:
        # Running Python code after a fork is only safe because this process has no other threads.
        # Files that a launcher has opened for the rank stay open: MPICH's PMI is one.
        child = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=become_the_command,
            close_fds=False,
            stdout=output.stdout if output is not None else None,
            stderr=output.stderr if output is not None else None,
        )
        if output is not None:
            output.begin()
        # A signal that comes before the witness is there is forwarded: rather twice than never.
        with _Witness() as witness:
            _watch(child, signals, witness, output)
    status = child.wait()
    if status < 0:
        _end_by(-status)
    if not may_stop or status != EXIT_CHECKPOINTED:
        return status
    try:
        if mark is not None:
            with open(mark, "a"):
                pass
    except OSError:  # the script understands the status as well, unless the launcher hides it
        return status
    return 0


def _watch(
    child: subprocess.Popen[bytes], signals: int, witness: _Witness, output: LabelledOutput | None
) -> None:
    """Forward signals and copy the output until the child has ended and its output is written.
    Processes that it has left behind may go on writing, and are not waited for."""
    forward = _Forwarding(child, signals, witness)
    ended: float | None = None
    if output is not None:
        output.before_write = forward.until_writable
    while ended is None or (output is not None and output.is_open):
        waits = forward()
        now = time.monotonic()
        if ended is None and child.poll() is not None:
            ended = now
            continue
        if ended is not None:
            waits.append(ended + PATIENCE - now)
            if waits[-1] <= 0:
                break
        timeout = max(0.0, min(waits)) if waits else None
        if output is not None and output.is_open:
            output.copy(signals, timeout)
        else:
            ready([signals], [], timeout)
    if output is not None:
        output.finish()


class _Forwarding:
    """Forwards the signals that arrive to the command."""

    def __init__(self, child: subprocess.Popen[bytes], signals: int, witness: _Witness) -> None:
        self._child, self._signals, self._witness = child, signals, witness
        self._due: dict[int, float] = {}

    def __call__(self) -> list[float]:
        """Forward the signals that are due. Returns the seconds until others are."""
        now = time.monotonic()
        for number in _read(self._signals):
            self._due.setdefault(number, now + _WAIT_FOR_OTHERS)
        for number in [number for number, when in self._due.items() if when <= now]:
            del self._due[number]
            if not self._witness.got(number):
                self._child.send_signal(number)
        return [when - now for when in self._due.values()]

    def until_writable(self, target: int) -> None:
        """Forward signals until the file with the number `target` can be written to: what reads
        the output may be stopped."""
        while True:
            waits = self()
            timeout = max(0.0, min(waits)) if waits else None
            if target in ready([self._signals], [target], timeout):
                return


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A signal handler. The signal is read from the pipe of `_arriving_signals`."""


@contextlib.contextmanager
def _arriving_signals() -> Iterator[int]:
    """A pipe from which the numbers of the signals of this process can be read."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def _read(signals: int) -> list[int]:
    """The signals that have arrived and are to be forwarded, in their order."""
    try:
        return [number for number in os.read(signals, 4096) if number in FORWARDED]
    except BlockingIOError:
        return []


class _Witness:
    """A process beside the program that blocks signals, so that they stay pending there.

    Most launchers send a signal to all processes of a rank. The program has then got it already,
    and must not get it twice: its handler could be interrupted by itself. Other launchers, the
    kernel and containers with process numbers of their own send it to this process only. The
    witness shows which it was.
    """

    def __enter__(self) -> _Witness:
        self._seen: set[int] = set()  # by an earlier process, and not asked for yet
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _start(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # the witness inherits it
        # Without `cat`, every signal is forwarded.
        with contextlib.suppress(OSError):
            # It ends when this process closes the pipe or dies.
            self._process = subprocess.Popen(
                ["cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def got(self, number: int) -> bool:
        """Whether a signal was sent to the witness too. It is asked once for each signal."""
        if number in self._seen:
            self._seen.remove(number)
            return True
        if self._process is None:
            return False
        try:
            with open(f"/proc/{self._process.pid}/status", encoding="utf-8") as file:
                status = file.read()
        except OSError:
            return False
        pending = int(status.partition("\nShdPnd:")[2].split()[0], 16)
        shown = {one for one in FORWARDED if pending >> (one - 1) & 1}
        if number not in shown:
            return False
        self._seen |= shown - {number}
        self._stop()
        self._start()
        return True


def _end_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already dumped its core
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
