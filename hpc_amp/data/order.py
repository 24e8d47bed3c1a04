"""Which samples belong to which step.

The order of an epoch is a permutation that only depends on (seed, epoch). A step is a slice of it,
and the share of a rank is a slice of the step. So any step can be computed without the steps before
it, and the samples of a step are the same for every number of ranks.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator whose random numbers only depend on `key`.

    The key is hashed to keep similar keys apart: with `seed + epoch`, epoch 1 of seed 0 would have
    the order of epoch 0 of seed 1.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The permutation of `range(samples)` for `epoch`: int64 [samples], on the CPU."""
    return torch.randperm(samples, generator=generator(seed, "order", epoch))


def rank_share(order: Tensor, batch_size: int, rank: int, size: int) -> Tensor:
    """The samples of one rank: int64 [steps, batch_size / size], one row for each step.

    `order` is the order of an epoch. `batch_size` is that of the global batch, and must be
    divisible by `size`, the number of ranks. An incomplete last batch is dropped.
    """
    steps = len(order) // batch_size
    return order[: steps * batch_size].view(steps, size, batch_size // size)[:, rank]
