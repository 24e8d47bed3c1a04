"""Exchanges of Python objects, of rows of a tensor, and of values of tensors, between all ranks.
All functions but `is_alone` are collective calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hpc_amp.distributed.world import World

T = TypeVar("T")


def is_alone(world: World) -> bool:
    """Whether this is the only rank, or there is no process group."""
    return world.size == 1 or not (dist.is_available() and dist.is_initialized())


def gather(world: World, value: T) -> list[T]:
    """The `value` of each rank, by rank, on every rank. It must be small and picklable. Without a
    process group, the value of this rank stands for all."""
    values: list[Any] = [value] * world.size
    if not is_alone(world):
        dist.all_gather_object(values, value)
    return values


def from_first(world: World, value: T) -> T:
    """The `value` of rank 0, on every rank. It must be picklable, and may be large: `gather` needs
    as much memory as if all ranks had the largest value."""
    values = [value]
    if not is_alone(world):
        dist.broadcast_object_list(values, src=0)
    return values[0]


@torch.no_grad()
def copy_from_first(world: World, tensors: Iterable[Tensor]) -> None:
    """Give `tensors` the values that they have on rank 0, on every rank. Every rank passes tensors
    of the same types and shapes in the same order. There is one exchange for each type."""
    if is_alone(world):
        return
    by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in by_type.values():
        together = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(together, src=0)
        parts = together.split([tensor.numel() for tensor in alike])
        for tensor, values in zip(alike, parts, strict=True):
            tensor.copy_(values.view_as(tensor))


def gather_rows(rows: Tensor, world: World) -> Tensor:
    """The rows [n, d] of all ranks, by rank, on every rank. Ranks may have different n, also 0. A
    collective call."""
    if is_alone(world):
        return rows
    counts = gather(world, len(rows))
    padded = rows.new_zeros(max(1, *counts), rows.shape[1])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def gather_on_main(world: World, value: T) -> list[T] | None:
    """The `value` of each rank, by rank, on rank 0, and None on the others."""
    if world.size == 1:
        return [value]
    values: list[Any] | None = [None] * world.size if world.is_main else None
    dist.gather_object(value, values, dst=0)
    return values
