"""What all ranks agree on between two steps: whether to stop and whether to save.

A save or a stop that not all ranks take part in would hang the others.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from hpc_amp.distributed.world import World
from hpc_amp.train.stopping import StopReason, StopWatch

_MOST_STEPS = 1000


class Agreement:
    """Exchanges what the ranks have seen.

    The exchange costs a small all-reduce (near a millisecond over Ethernet), so it happens about
    every `interval` seconds. The number of steps in between follows from the slowest rank's step
    time as exchanged before, so it is the same on every rank.
    """

    def __init__(self, world: World, watch: StopWatch, *, interval: float = 0.25) -> None:
        self.world = world
        self.watch = watch
        self.interval = interval
        self.step_seconds = interval
        """How long a step takes on the slowest rank, as far as is known."""
        self._next_step = 0
        self._last: tuple[int, float] | None = None

    def due(self, step: int) -> bool:
        """Whether the ranks exchange their views after `step`."""
        return step >= self._next_step

    def exchange(self, step: int, *, save: bool) -> tuple[StopReason, bool]:
        """The agreed reason to stop and the agreed wish to save. Every rank calls this after the
        same steps; rank 0's clock alone decides about `save`, since clocks differ."""
        step_seconds = self._measure(step)
        reason = self.watch.look()
        if self.world.size > 1:
            views = torch.tensor(
                [float(reason), float(save and self.world.is_main), step_seconds],
                dtype=torch.float64,
            )
            dist.all_reduce(views, op=dist.ReduceOp.MAX)
            reason, save = StopReason(int(views[0])), bool(views[1])
            step_seconds = float(views[2])
        self.step_seconds = step_seconds
        pause = int(self.interval / max(step_seconds, 1e-6))
        self._next_step = step + max(1, min(_MOST_STEPS, pause))
        return reason, save

    def exchange_evaluating(self, *, done: bool) -> tuple[StopReason, bool]:
        """The same within an evaluation, whose parts may differ in length: the agreed reason to
        stop, and whether every rank is `done` with its part. Every rank calls this until then."""
        reason = self.watch.look()
        if self.world.size > 1:
            views = torch.tensor([int(reason), int(not done)])
            dist.all_reduce(views, op=dist.ReduceOp.MAX)
            reason, done = StopReason(int(views[0])), not views[1]
        return reason, done

    def _measure(self, step: int) -> float:
        """Seconds a step since the last exchange. The first exchange knows nothing yet, in a
        resumed run either, and so asks for the next one right after the following step."""
        now, last = time.monotonic(), self._last
        self._last = (step, now)
        return (now - last[1]) / max(1, step - last[0]) if last else self.interval
