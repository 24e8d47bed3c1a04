"""What this process has seen of a wish to stop early.

Signal handlers only set a flag; `hpc_amp.train.agreement` says when the ranks act on it. A deadline
and a stop file work the same way, for launchers that swallow signals. Nothing here imports torch:
the handlers must stand before that takes its seconds.
"""

from __future__ import annotations

import signal
import time
from enum import IntEnum
from pathlib import Path
from types import FrameType


class StopReason(IntEnum):
    """Why a run stops early; a higher one prevails when ranks see different ones."""

    NONE = 0
    DEADLINE = 1
    WARNED = 2
    ASKED = 3
    TERMINATED = 4

    @property
    def text(self) -> str:
        """The reason in words."""
        return {
            StopReason.NONE: "it did not stop",
            StopReason.DEADLINE: "the time limit is near",
            StopReason.WARNED: "the scheduler warned of the end",
            StopReason.ASKED: "a stop was asked for",
            StopReason.TERMINATED: "the job was told to terminate",
        }[self]


_SIGNALS = {
    signal.SIGUSR1: StopReason.WARNED,
    signal.SIGUSR2: StopReason.WARNED,
    signal.SIGTERM: StopReason.TERMINATED,
    signal.SIGINT: StopReason.ASKED,
}


class StopWatch:
    """This process's own view of whether to stop: signals, the deadline, the stop file."""

    def __init__(self, *, stop_at: float | None, stop_file: Path | None) -> None:
        self.stop_at = stop_at
        self.stop_file = stop_file
        self._signalled = StopReason.NONE

    def install_handlers(self) -> None:
        """Turn the signals of schedulers and terminals into a flag. A second SIGINT interrupts."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._signalled is StopReason.ASKED:
            raise KeyboardInterrupt
        self._signalled = max(self._signalled, _SIGNALS[signal.Signals(number)])

    def look(self) -> StopReason:
        """The highest reason to stop as this process sees it now. Looks at the file system."""
        reason = self._signalled
        if self.stop_file is not None and self.stop_file.exists():
            reason = max(reason, StopReason.ASKED)
        if self.stop_at is not None and time.time() >= self.stop_at:
            reason = max(reason, StopReason.DEADLINE)
        return reason
