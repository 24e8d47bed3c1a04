"""Measures how long a step waits for the exchange of gradients between the ranks."""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with its types.

import statistics
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.distributed.gradients import average_gradients
from hpc_amp.distributed.world import World
from hpc_amp.train.clock import Clock, Mark

_ALONE_WARMUP = 3
_ALONE_ROUNDS = 20
_ALONE_SECONDS = 5.0


class ExchangeTimer:
    """Marks two moments in each backward pass that exchanges gradients: when the last gradients are
    computed, and when the last exchange is complete. The time between them is the communication
    that computation does not hide.

    DDP calls a communication hook for each bucket, in a fixed order; the last bucket is passed when
    all gradients are computed. The hook computes what DDP computes without one, bit by bit
    (https://pytorch.org/docs/stable/ddp_comm_hooks.html).
    """

    def __init__(self, clock: Clock, world: World) -> None:
        self._clock = clock
        self._share = 1.0 / world.size
        self._pairs: list[tuple[Mark, Mark]] = []

    def watch(self, network: DistributedDataParallel) -> None:
        """Measure the exchanges of a network. Must be called before its first backward pass."""
        network.register_comm_hook(None, self._exchange)

    def average(self, parameters: Sequence[nn.Parameter], flags: Tensor) -> list[bool]:
        """Average gradients as `average_gradients` does, and measure it."""
        computed = self._clock.mark()
        found = average_gradients(parameters, flags)
        self._pairs.append((computed, self._clock.mark()))
        return found

    def take(self) -> list[tuple[Mark, Mark]]:
        """The marks (computed, arrived) of each backward pass since the last call."""
        pairs, self._pairs = self._pairs, []
        return pairs

    def _exchange(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's communication hook: average a bucket of gradients over the ranks, and mark the
        times of the last bucket."""
        last = bucket.is_last()
        computed = self._clock.mark() if last else None
        gradients = bucket.buffer().mul_(self._share)
        work = dist.all_reduce(gradients, async_op=True)

        def arrived(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            if last:
                self._pairs.append((computed, self._clock.mark()))
            return future.value()[0]

        return work.get_future().then(arrived)


def time_alone(size: int, clock: Clock, device: torch.device) -> list[float]:
    """Measure all-reduces of `size` bytes while nothing else runs, after a warm-up. Returns the
    seconds of each one. A collective call."""
    values = torch.zeros(max(1, size // 4), device=device)

    def reduce() -> tuple[Mark, Mark]:
        begin = clock.mark()
        dist.all_reduce(values)
        return begin, clock.mark()

    warmup = [clock.seconds(*reduce()) for _ in range(_ALONE_WARMUP)]
    # As many rounds as fit into a few seconds, by the clock of rank 0.
    fitting = int(_ALONE_SECONDS / max(statistics.median(warmup), 1e-9))
    rounds = torch.tensor([max(1, min(_ALONE_ROUNDS, fitting))], device=device)
    dist.broadcast(rounds, src=0)
    pairs = [reduce() for _ in range(int(rounds))]
    return [clock.seconds(begin, end) for begin, end in pairs]
