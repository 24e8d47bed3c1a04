"""Small objects from all ranks in one place. Every rank of the job calls these together."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

from hpc_amp.distributed.world import World

T = TypeVar("T")


def is_alone(world: World) -> bool:
    """Whether this rank has nobody to talk to: it is the only one, or no process group is up."""
    return world.size == 1 or not (dist.is_available() and dist.is_initialized())


def gather(world: World, value: T) -> list[T]:
    """The `value` of each rank, by rank, on every rank. It must be small and picklable. Alone, this
    rank's stands for all."""
    values: list[Any] = [value] * world.size
    if not is_alone(world):
        dist.all_gather_object(values, value)
    return values


def gather_on_main(world: World, value: T) -> list[T] | None:
    """The `value` of each rank, by rank, on rank 0; None elsewhere."""
    if world.size == 1:
        return [value]
    values: list[Any] | None = [None] * world.size if world.is_main else None
    dist.gather_object(value, values, dst=0)
    return values
