"""How long the ranks' exchange of gradients holds up a step."""

# Annotations are no texts here: DDP compares those of a hook with its own types.

import statistics

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.distributed.world import World
from hpc_amp.train.clock import Clock, Mark

_ALONE_WARMUP = 3
_ALONE_ROUNDS = 20
_ALONE_SECONDS = 5.0


class ExchangeTimer:
    """Marks, in every backward pass that exchanges gradients, when the last of them is computed and
    when the last of them has arrived: what lies between is not hidden behind compute.

    DDP calls the hook once a bucket, in a fixed order; the last bucket is handed over when all
    gradients are there. What the hook does is what DDP does without one, bit by bit.
    """

    def __init__(self, clock: Clock, world: World) -> None:
        self._clock = clock
        self._share = 1.0 / world.size
        self._pairs: list[tuple[Mark, Mark]] = []

    def watch(self, network: DistributedDataParallel) -> None:
        """Time the exchanges of a network that has made none yet."""
        network.register_comm_hook(None, self._exchange)

    def take(self) -> list[tuple[Mark, Mark]]:
        """(computed, arrived) of each backward pass since the last call."""
        pairs, self._pairs = self._pairs, []
        return pairs

    def _exchange(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
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
    """Seconds of each of several all-reduces of `size` bytes with nothing beside them, after a
    warm-up. All ranks call this together."""
    values = torch.zeros(max(1, size // 4), device=device)

    def reduce() -> tuple[Mark, Mark]:
        begin = clock.mark()
        dist.all_reduce(values)
        return begin, clock.mark()

    warmup = [clock.seconds(*reduce()) for _ in range(_ALONE_WARMUP)]
    # As many as fit into a few seconds, by one rank's clock.
    fitting = int(_ALONE_SECONDS / max(statistics.median(warmup), 1e-9))
    rounds = torch.tensor([max(1, min(_ALONE_ROUNDS, fitting))], device=device)
    dist.broadcast(rounds, src=0)
    return [clock.seconds(*pair) for pair in [reduce() for _ in range(int(rounds))]]
