"""A thread beside the training that sees to it that this rank ends when it has to.

It hears signals at once, even where the training waits for other ranks in a collective operation,
in which Python's handlers do not run. It writes the heartbeat. And it ends the process by force in
two cases: a stop that does not come to its end before the scheduler kills, and a training that does
not move (a hung rank, or one that waits for a hung rank). It shows the stacks of all threads first.
Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from hpc_amp.train.heartbeat import Heartbeat, in_words, process_state, read_heartbeats
from hpc_amp.train.outcome import AFTERMATH_SECONDS, write_first_outcome
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopReason, StopWatch

_TICK = 0.5
_ASLEEP = 5.0
_SILENT = 2.0
_HEARTBEAT = 10.0
_LATEST_EXIT = 5.0
EXIT_CHECKPOINTED = 75


class Sentry(threading.Thread):
    """Watches over one rank. `hang_limit` is how long a phase with a limit may take without a sign
    of progress, `grace` how long after SIGTERM the scheduler kills, both in seconds."""

    def __init__(
        self,
        run: RunDirectory,
        watch: StopWatch,
        *,
        rank: int,
        grace: float,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        super().__init__(name="sentry", daemon=True)
        self.run_directory, self.watch, self.rank = run, watch, rank
        self.grace = grace
        self.hang_limit: float | None = None
        self.step: int | None = None
        self.phase = "starting"
        self._leave = leave
        self._moved = time.monotonic()
        self._closed = False
        self._heartbeat = Heartbeat(run.heartbeats, rank)
        self._signals, self._wake = socket.socketpair()

    # -- called by the training -------------------------------------------------------------------

    def listen(self) -> None:
        """Begin. Signals reach this thread through a file descriptor that the C handler writes to.
        Called by the main thread, after the handlers are installed."""
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        # Shows all stacks without Python's help: for another rank's sentry to ask for.
        if sys.__stderr__ is not None:
            faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True)
        # At once: a rank without any sign of life would not be missed.
        self._heartbeat.write(0, self.phase, time.time())
        self.start()

    def limit(self, seconds: float) -> None:
        """From now on take `seconds` without progress for a hang."""
        self._moved = time.monotonic()
        self.hang_limit = seconds

    def moved(self, step: int, phase: str) -> None:
        """A sign of progress. Costs as much as a few assignments."""
        self.step = step
        self.phase = phase
        self._moved = time.monotonic()

    def unlimit(self) -> None:
        """From now on nothing is taken for a hang: what follows has limits of its own."""
        self.hang_limit = None

    def close(self) -> None:
        """The rank is done: the thread ends, and hears no signals any more. Called by the main
        thread."""
        self._closed = True
        if self.is_alive():
            signal.set_wakeup_fd(-1)
            faulthandler.unregister(signal.SIGQUIT)
            with contextlib.suppress(OSError):  # it has noticed by itself
                self._wake.send(b"\0")

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Look around until the rank is done."""
        with self._signals, self._wake, contextlib.closing(self._heartbeat):
            self._look_around()

    def _look_around(self) -> None:
        seen = beaten = time.monotonic()
        while not self._closed:
            tick = min(_TICK, (self.hang_limit or 4 * _TICK) / 4)
            if select.select([self._signals], [], [], tick)[0]:
                for number in self._signals.recv(64):
                    self.watch.note(number)
            now = time.monotonic()
            if now - seen > _ASLEEP:
                # The whole process slept: suspended jobs are no hung jobs.
                self._moved += now - seen
            seen = now
            if now - beaten >= min(_HEARTBEAT, (self.hang_limit or 4 * _HEARTBEAT) / 4):
                self._heartbeat.write(self.step or 0, self.phase, time.time() - (now - self._moved))
                beaten = now
            if self._is_late(now):
                self._exit_by_force()
            elif self.hang_limit is not None and now - self._moved > self.hang_limit:
                self._end_hang(now)

    def _is_late(self, now: float) -> bool:
        """Whether the stop has to be over, since the scheduler is about to kill."""
        begun, end_at, stop_at = self.watch.terminated_at, self.watch.end_at, self.watch.stop_at
        if begun is not None and now - begun >= self.grace - min(_LATEST_EXIT, self.grace / 4):
            return True
        if end_at is None or stop_at is None:
            return False
        return self.watch.now() > end_at - min(3 * _LATEST_EXIT, (end_at - stop_at) / 4)

    def _exit_by_force(self) -> None:
        if self._closed:
            return
        reason = (
            f"rank {self.rank} could not save in time in step {self.step or 0} ({self.phase}); "
            "the run goes on from its newest checkpoint"
        )
        cause = max(self.watch.look(), StopReason.DEADLINE)
        try:
            write_first_outcome(self.run_directory, "checkpointed", reason, self.step, cause)
            self._say(f"{reason}\n{stacks()}")
        finally:  # whatever keeps it from being told: a thread that died here would end nothing
            self._leave(EXIT_CHECKPOINTED)

    def _end_hang(self, now: float) -> None:
        """Show what this rank is doing, name those that are silent, and end them and this one."""
        try:
            self._tell_hang(now)
        finally:  # as above
            self._leave(1)

    def _tell_hang(self, now: float) -> None:
        seconds = now - self._moved
        silent = self._silent_ranks()
        reason = (
            f"no progress for {seconds:.0f} s in step {self.step or 0} ({self.phase}), "
            f"seen by rank {self.rank}"
        )
        if silent:
            reason += "; silent: " + ", ".join(text for text, _ in silent)
        write_first_outcome(self.run_directory, "failed", reason, self.step, StopReason.NONE)
        self._say(f"{reason} (launch.timeout). Its stacks:\n{stacks()}")
        for text, pid in silent:
            if pid is not None:
                self._say(f"the stacks of {text}:")
                _wake_and_end(pid)
        # The others notice at about the same time, and a launcher kills them when this one ends.
        time.sleep(AFTERMATH_SECONDS)

    def _silent_ranks(self) -> list[tuple[str, int | None]]:
        """The ranks that have given no sign of life for some time, in words, each with its process
        number where it is on this machine."""
        found: list[tuple[str, int | None]] = []
        limit = self.hang_limit or 0.0
        for beat in read_heartbeats(self.run_directory.heartbeats):
            age = time.time() - beat["time"]
            if beat["rank"] == self.rank or age < max(limit / 2, _SILENT):
                continue
            state = process_state(beat)
            told = state if state in ("stopped", "dead") else f"since {age:.0f} s"
            pid = beat["pid"] if state in ("stopped", "running") else None
            found.append((in_words(beat, told), pid))
        return found

    def _say(self, text: str) -> None:
        """Tell in one write, each line with the rank: several ranks write to one log."""
        lines = "".join(f"hpc-amp: rank {self.rank}: {line}\n" for line in text.splitlines())
        with contextlib.suppress(OSError):
            os.write(2, lines.encode())


def stacks() -> str:
    """The stacks of all threads of this process. Where there is no place to keep them, with too
    many open files or in a Python for old systems, they go to standard error as they are."""
    try:
        memory = os.memfd_create("stacks")
    except (OSError, AttributeError):
        faulthandler.dump_traceback(file=2, all_threads=True)
        return "its stacks are above"
    with open(memory, "w+b") as out:
        faulthandler.dump_traceback(file=out, all_threads=True)
        out.seek(0)
        return out.read().decode(errors="replace")


def _wake_and_end(pid: int) -> None:
    """Let a stopped process show its stacks (it has a handler in C for SIGQUIT), then kill it."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGQUIT)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
