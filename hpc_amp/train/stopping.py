"""What this process has seen of a wish to stop early.

Signal handlers only set a flag; `hpc_amp.train.agreement` says when the ranks act on it. A deadline
and a stop file work the same way, for launchers that swallow signals. Nothing here imports torch:
the handlers must stand before that takes its seconds.
"""

from __future__ import annotations

import os
import signal
import time
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any


class StopReason(IntEnum):
    """Why a run stops early; a higher one prevails when ranks see different ones."""

    NONE = 0
    DEADLINE = 1
    WARNED = 2
    ASKED = 3
    TERMINATED = 4
    SUPERSEDED = 5

    @property
    def text(self) -> str:
        """The reason in words."""
        return {
            StopReason.NONE: "it did not stop",
            StopReason.DEADLINE: "the time limit is near",
            StopReason.WARNED: "the scheduler warned of the end",
            StopReason.ASKED: "a stop was asked for",
            StopReason.TERMINATED: "the job was told to terminate",
            StopReason.SUPERSEDED: "a later attempt has taken over this run",
        }[self]


_SIGNALS: dict[int, StopReason] = {
    signal.SIGUSR1: StopReason.WARNED,
    signal.SIGUSR2: StopReason.WARNED,
    signal.SIGTERM: StopReason.TERMINATED,
    signal.SIGINT: StopReason.ASKED,
}


class StopWatch:
    """This process's own view of whether to stop: signals, the deadline, files.

    `stop_at` is when to stop, `end_at` when the scheduler ends the job, both in seconds since the
    epoch. `stop_file` asks for a stop; where `successor` exists, a later attempt works on this run,
    and nothing must be written to it any more. One rank that looks at files is enough.
    """

    def __init__(
        self,
        *,
        stop_at: float | None,
        stop_file: Path | None,
        end_at: float | None = None,
        successor: Path | None = None,
    ) -> None:
        self.stop_at = stop_at
        self.end_at = end_at
        self.stop_file = stop_file
        self.successor = successor
        self.terminated_at: float | None = None
        """When the process was told to terminate, by the monotonic clock."""
        self._signalled = StopReason.NONE
        self._interrupts = 0
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, by the clock as it was at the start: one that is set meanwhile
        must not end a run."""
        return self._epoch + time.monotonic()

    def install_handlers(self) -> dict[int, Any]:
        """Turn the signals of schedulers and terminals into a flag. A second SIGINT interrupts.
        Returns the handlers that there were before."""
        return {number: signal.signal(number, self._on_signal) for number in _SIGNALS}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        self.note(number)

    def note(self, number: int) -> None:
        """Remember that a signal has come, from any thread and as often as one likes."""
        reason = _SIGNALS.get(number, StopReason.NONE)
        if reason is StopReason.TERMINATED and self.terminated_at is None:
            self.terminated_at = time.monotonic()
        self._signalled = max(self._signalled, reason)

    def leave_time(self, seconds: float) -> None:
        """Stop so long before the end of the job, if that is earlier than was planned."""
        if self.stop_at is not None and self.end_at is not None:
            self.stop_at = min(self.stop_at, self.end_at - seconds)

    def look(self) -> StopReason:
        """The highest reason to stop as this process sees it now. Looks at the file system; what
        that does not let it see is not a reason."""
        reason = self._signalled
        if self.stop_file is not None and os.path.exists(self.stop_file):
            reason = max(reason, StopReason.ASKED)
        if self.stop_at is not None and self.now() >= self.stop_at:
            reason = max(reason, StopReason.DEADLINE)
        if self.successor is not None and os.path.exists(self.successor):
            reason = StopReason.SUPERSEDED
        return reason
