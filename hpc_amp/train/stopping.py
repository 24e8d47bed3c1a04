"""Stopping early without losing anything.

Signal handlers only set a flag. The ranks agree at a step boundary, because a save or a stop that
not all of them take part in would hang the others. A deadline and a stop file work the same way,
for launchers that swallow signals.
"""

from __future__ import annotations

import signal
import time
from enum import IntEnum
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from hpc_amp.distributed.world import World


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
        """The reason to stop as this process sees it now. Looks at the file system."""
        if self._signalled:
            return self._signalled
        if self.stop_file is not None and self.stop_file.exists():
            return StopReason.ASKED
        if self.stop_at is not None and time.time() >= self.stop_at:
            return StopReason.DEADLINE
        return StopReason.NONE


class Agreement:
    """What all ranks agree on between two steps: whether to stop and whether to save.

    The exchange costs a small all-reduce (near a millisecond over Ethernet), so it happens about
    every `interval` seconds. The number of steps in between follows from the slowest rank's step
    time as exchanged before, so it is the same on every rank.
    """

    def __init__(self, world: World, watch: StopWatch, *, interval: float = 0.25) -> None:
        self.world = world
        self.watch = watch
        self.interval = interval
        self._next_step = 0
        self._last_step = 0
        self._last_time = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether the ranks exchange their views after `step`."""
        return step >= self._next_step

    def exchange(self, step: int, *, save: bool) -> tuple[StopReason, bool]:
        """The agreed reason to stop and the agreed wish to save. Every rank calls this after the
        same steps; rank 0's clock alone decides about `save`, since clocks differ."""
        now = time.monotonic()
        step_seconds = (now - self._last_time) / max(1, step - self._last_step)
        reason = self.watch.look()
        if self.world.size > 1:
            views = torch.tensor(
                [float(reason), float(save and self.world.is_main), step_seconds],
                dtype=torch.float64,
            )
            dist.all_reduce(views, op=dist.ReduceOp.MAX)
            reason, save = StopReason(int(views[0])), bool(views[1])
            step_seconds = float(views[2])
        self._next_step = step + max(1, min(1000, int(self.interval / max(step_seconds, 1e-6))))
        self._last_step, self._last_time = step, now
        return reason, save
