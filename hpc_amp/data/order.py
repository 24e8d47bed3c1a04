"""Which samples make up which step.

The order of an epoch is a permutation that depends on (seed, epoch) alone. A step is a slice of it,
and a rank's share a slice of that, so any step of any epoch is found without walking through the
ones before, and the samples of a step are the same for every number of ranks.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator whose stream depends on `key` alone.

    Hashing keeps the streams of neighbouring keys apart: seeding with `seed + epoch` would give
    epoch 1 of seed 0 the order of epoch 0 of seed 1.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The permutation of `range(samples)` for `epoch`: int64 [samples], on the CPU."""
    return torch.randperm(samples, generator=generator(seed, "order", epoch))


def rank_share(order: Tensor, batch_size: int, rank: int, size: int) -> Tensor:
    """The samples of one rank: int64 [steps, batch_size / size], a row a step.

    `batch_size` is the global one and must divide by `size`. An incomplete last batch is dropped.
    """
    steps = len(order) // batch_size
    return order[: steps * batch_size].view(steps, size, batch_size // size)[:, rank]
