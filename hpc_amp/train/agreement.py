"""What the ranks agree on between two steps: whether to stop, and whether to save.

If only some ranks took part in a checkpoint or a stop, the others would wait for them for ever.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from hpc_amp.distributed.world import World
from hpc_amp.train.stopping import StopReason, StopWatch

_MOST_STEPS = 1000


class Agreement:
    """Exchanges the views of the ranks.

    An exchange takes a small all-reduce (about a millisecond over Ethernet), so there is one about
    every `interval` seconds. The number of steps between two exchanges follows from the step time
    of the slowest rank, which was exchanged before, so it is the same on every rank.
    """

    def __init__(self, world: World, watch: StopWatch, *, interval: float = 0.25) -> None:
        self.world = world
        self.watch = watch
        self.interval = interval
        self.step_seconds = interval
        """Seconds of a step on the slowest rank, from the last exchange."""
        self._next_step = 0
        self._last: tuple[int, float] | None = None

    def due(self, step: int) -> bool:
        """Whether the ranks exchange their views after `step`. The same on every rank."""
        return step >= self._next_step

    def exchange(self, step: int, *, save: bool) -> tuple[StopReason, bool]:
        """Agree on a reason to stop and on whether to save, and return both. A collective call.

        Clocks differ, so only the `save` of rank 0 counts.
        """
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
        """Exchange during an evaluation, in which ranks may have shares of different lengths.

        Returns the agreed reason to stop, and whether every rank is `done` with its share. Every
        rank has to call this until all are done.
        """
        reason = self.watch.look()
        if self.world.size > 1:
            views = torch.tensor([int(reason), int(not done)])
            dist.all_reduce(views, op=dist.ReduceOp.MAX)
            reason, done = StopReason(int(views[0])), not views[1]
        return reason, done

    def _measure(self, step: int) -> float:
        """Seconds of a step since the last exchange. The first exchange of an attempt has nothing
        to measure and returns the interval, so that the next one follows after a single step."""
        now, last = time.monotonic(), self._last
        self._last = (step, now)
        return (now - last[1]) / max(1, step - last[0]) if last else self.interval
