"""What this process knows about a stop before the last step.

Signal handlers only set a flag; `hpc_amp.train.agreement` decides when the ranks act on it. A time
limit and a stop file work the same way, for launchers that do not forward signals. This module does
not import torch, because the handlers must be installed before that import, which takes seconds.
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
    """Why a run stops early. If ranks have different reasons, the highest one counts."""

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
            StopReason.WARNED: "the scheduler warned that the job will end",
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


def seconds_in(variable: str) -> float | None:
    """The seconds in an environment variable, or None if it is empty or not set."""
    text = os.environ.get(variable)
    return float(text) if text else None


class StopWatch:
    """The view of this process: signals, the time limit, files.

    `stop_at`: when to stop, in seconds since the epoch.
    `stop_file`: a file that asks for a stop if it exists.
    `end_at`: when the scheduler ends the job, in seconds since the epoch.
    `successor`: the folder of the next attempt. If it exists, a later attempt works on this run,
    and this one must not write to it any more.

    It is enough if one rank looks at the files.
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
        """When SIGTERM arrived, by the monotonic clock."""
        self._signalled = StopReason.NONE
        self._interrupts = 0
        self._epoch = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch, by the clock at the start of the process: if the clock is set
        meanwhile, that must not end a run."""
        return self._epoch + time.monotonic()

    def install_handlers(self) -> dict[int, Any]:
        """Turn the signals of schedulers and terminals into flags. A second SIGINT raises
        KeyboardInterrupt. Returns the previous handlers, by signal number."""
        return {number: signal.signal(number, self._on_signal) for number in _SIGNALS}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        self.note(number)

    def note(self, number: int) -> None:
        """Remember that a signal arrived. May be called from any thread, and repeatedly."""
        reason = _SIGNALS.get(number, StopReason.NONE)
        if reason is StopReason.TERMINATED and self.terminated_at is None:
            self.terminated_at = time.monotonic()
        self._signalled = max(self._signalled, reason)

    def leave_time(self, seconds: float) -> None:
        """Stop at least `seconds` before the job ends."""
        if self.stop_at is not None and self.end_at is not None:
            self.stop_at = min(self.stop_at, self.end_at - seconds)

    def look(self) -> StopReason:
        """The highest reason to stop that this process sees now. Reads the file system; a file that
        cannot be read is ignored."""
        reason = self._signalled
        if self.stop_file is not None and os.path.exists(self.stop_file):
            reason = max(reason, StopReason.ASKED)
        if self.stop_at is not None and self.now() >= self.stop_at:
            reason = max(reason, StopReason.DEADLINE)
        if self.successor is not None and os.path.exists(self.successor):
            reason = StopReason.SUPERSEDED
        return reason
