"""Clusters of instance features: the ways in which objects of a label look."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.data.order import generator

STARTS = 5
"""First centres that are tried; the best result counts."""
ITERATIONS = 100
"""The most iterations of a start. Few need more than 20."""


def cluster(values: Tensor, count: int, *key: int | str) -> Tensor:
    """k-means (Lloyd, 1982) of `values` [N, C] on the CPU: at most `count` centres, as float64
    [K, C]. There are fewer where fewer values differ.

    The first centres are those of k-means++ (Arthur & Vassilvitskii, 2007). Random numbers depend
    on `key` alone, so equal values in equal order have equal centres.
    """
    values = values.double()
    different: Tensor = values.unique(dim=0)
    if len(different) <= count:
        return different
    best, least = different[:count], torch.inf
    for start in range(STARTS):
        centres = _spread(values, count, generator("clusters", *key, start))
        nearest = torch.full((len(values),), -1)
        for _ in range(ITERATIONS):
            before, (distances, nearest) = nearest, _distances(values, centres).min(1)
            if torch.equal(nearest, before):
                break
            sums = torch.zeros_like(centres).index_add_(0, nearest, values)
            members = torch.bincount(nearest, minlength=len(centres))[:, None]
            # A centre without members is removed.
            centres = (sums / members)[members[:, 0] > 0]
        error = float(distances.square().sum())
        if error < least:
            best, least = centres, error
    return best


def _spread(values: Tensor, count: int, stream: torch.Generator) -> Tensor:
    """The first centres: each is a value, chosen with a probability that grows with the square of
    its distance from those before it."""
    chosen = values[torch.randint(len(values), (1,), generator=stream)]
    while len(chosen) < count:
        weights = _distances(values, chosen).min(1).values.square()
        chosen = torch.cat((chosen, values[torch.multinomial(weights, 1, generator=stream)]))
    return chosen


def _distances(values: Tensor, centres: Tensor) -> Tensor:
    # The faster way by a product of matrices rounds small distances.
    mode = "donot_use_mm_for_euclid_dist"
    distances: Tensor = torch.cdist(values, centres, compute_mode=mode)
    return distances
