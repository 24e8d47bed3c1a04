"""The sentry: a thread beside the training that makes sure that this rank ends when it has to.

It notices signals at once, even while the training waits in a collective operation, where Python's
signal handlers do not run. It writes the heartbeat. It ends the process by force in two cases: if a
stop is not complete shortly before the scheduler kills the job, and if training makes no progress
(this rank hangs, or waits for one that hangs). It prints the stacks of all threads first. This
module does not import torch.
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
"""Seconds between two checks, at most."""
_ASLEEP = 5.0
"""Seconds between two checks from which on the whole process must have been suspended."""
_SILENT = 2.0
"""Seconds without a heartbeat from which on a rank may be called silent."""
_HEARTBEAT = 10.0
"""Seconds between two heartbeats, at most."""
_LATEST_EXIT = 5.0
"""Seconds before the scheduler kills the job when the process has to end."""
EXIT_CHECKPOINTED = 75


class Sentry(threading.Thread):
    """Watches over one rank.

    `run`: the run directory; heartbeats and outcome go there.
    `watch`: learns of signals from the sentry, and knows the time limit.
    `grace`: seconds from SIGTERM until the scheduler kills the job.
    `leave`: ends the process with an exit status.
    """

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
        """Start the thread. Signals reach it through a file descriptor that Python's C handler
        writes to. Called by the main thread, after the signal handlers are installed."""
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        # The sentry of another rank asks for stacks with SIGQUIT. This handler needs no GIL.
        if sys.__stderr__ is not None:
            faulthandler.register(signal.SIGQUIT, file=sys.__stderr__, all_threads=True)
        # Now, because a rank that never wrote a heartbeat would not be missed.
        self._heartbeat.write(0, self.phase, time.time())
        self.start()

    def limit(self, seconds: float) -> None:
        """From now on, `seconds` without progress count as a hang."""
        self._moved = time.monotonic()
        self.hang_limit = seconds

    def moved(self, step: int, phase: str) -> None:
        """Report progress. Costs no more than a few assignments.

        `step`: the number of completed steps. `phase`: what the rank is doing, for messages.
        """
        self.step = step
        self.phase = phase
        self._moved = time.monotonic()

    def unlimit(self) -> None:
        """From now on, nothing counts as a hang: what follows has time limits of its own."""
        self.hang_limit = None

    def close(self) -> None:
        """End the thread, and stop listening to signals. Called by the main thread when the rank
        is done."""
        self._closed = True
        if self.is_alive():
            signal.set_wakeup_fd(-1)
            faulthandler.unregister(signal.SIGQUIT)
            with contextlib.suppress(OSError):  # the thread has ended already
                self._wake.send(b"\0")

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """The body of the thread."""
        with self._signals, self._wake, contextlib.closing(self._heartbeat):
            self._look_around()

    def _look_around(self) -> None:
        """Check signals, heartbeat, time limit and progress until the rank is done."""
        seen = beaten = time.monotonic()
        while not self._closed:
            tick = min(_TICK, (self.hang_limit or 4 * _TICK) / 4)
            if select.select([self._signals], [], [], tick)[0]:
                for number in self._signals.recv(64):
                    self.watch.note(number)
            now = time.monotonic()
            if now - seen > _ASLEEP:
                # The whole process was suspended. This is not a hang.
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
        """Whether the scheduler is about to kill the job, so that a stop has to be over."""
        begun, end_at, stop_at = self.watch.terminated_at, self.watch.end_at, self.watch.stop_at
        if begun is not None and now - begun >= self.grace - min(_LATEST_EXIT, self.grace / 4):
            return True
        if end_at is None or stop_at is None:
            return False
        return self.watch.now() > end_at - min(3 * _LATEST_EXIT, (end_at - stop_at) / 4)

    def _exit_by_force(self) -> None:
        """End the process with the outcome `checkpointed`: a later attempt can go on."""
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
        finally:  # whatever fails above: if this thread died, nothing would end the process
            self._leave(EXIT_CHECKPOINTED)

    def _end_hang(self, now: float) -> None:
        """Print what this rank is doing, name the ranks that are silent, and end them and this
        process."""
        try:
            silent = self._silent_ranks()
            reason = (
                f"no progress for {now - self._moved:.0f} s in step {self.step or 0} "
                f"({self.phase}), seen by rank {self.rank}"
            )
            if silent:
                reason += "; silent: " + ", ".join(text for text, _ in silent)
            write_first_outcome(self.run_directory, "failed", reason, self.step, StopReason.NONE)
            self._say(f"{reason} (launch.timeout). Its stacks:\n{stacks()}")
            for text, pid in silent:
                if pid is not None:
                    self._say(f"the stacks of {text}:")
                    _wake_and_end(pid)
            # The other ranks notice the hang at about the same time, and a launcher kills them as
            # soon as this one ends. They need time to print their stacks.
            time.sleep(AFTERMATH_SECONDS)
        finally:  # as in _exit_by_force
            self._leave(1)

    def _silent_ranks(self) -> list[tuple[str, int | None]]:
        """Describe the ranks whose heartbeats are old. Each comes with its process number, if the
        process is alive on this machine."""
        found: list[tuple[str, int | None]] = []
        limit = self.hang_limit or 0.0
        for beat in read_heartbeats(self.run_directory.heartbeats):
            age = time.time() - beat["time"]
            if beat["rank"] == self.rank or age < max(limit / 2, _SILENT):
                continue
            state = process_state(beat)
            description = state if state in ("stopped", "dead") else f"since {age:.0f} s"
            pid = beat["pid"] if state in ("stopped", "running") else None
            found.append((in_words(beat, description), pid))
        return found

    def _say(self, text: str) -> None:
        """Print to standard error in one write, because several ranks write to one log. Each line
        names the rank."""
        lines = "".join(f"hpc-amp: rank {self.rank}: {line}\n" for line in text.splitlines())
        with contextlib.suppress(OSError):
            os.write(2, lines.encode())


def stacks() -> str:
    """The stacks of all threads of this process, as text. If they cannot be kept in memory (too
    many open files, an old C library), they are printed to standard error instead."""
    try:
        memory = os.memfd_create("stacks")
    except (OSError, AttributeError):
        faulthandler.dump_traceback(file=2, all_threads=True)
        return "the stacks are above"
    with open(memory, "w+b") as out:
        faulthandler.dump_traceback(file=out, all_threads=True)
        out.seek(0)
        return out.read().decode(errors="replace")


def _wake_and_end(pid: int) -> None:
    """Make a process print its stacks, even if it is stopped, and kill it."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGQUIT)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
