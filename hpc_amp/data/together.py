"""One answer for all ranks.

Whether files exist is never asked by each rank for itself: shared file systems answer differently
on different nodes for a while, and ranks that go different ways hang each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError

T = TypeVar("T")


def together(world: World, action: Callable[[], T]) -> list[T]:
    """Run `action` on every rank, wait for all, and return the results by rank. What a rank
    returns must be small and picklable. A DataError on any rank is raised on every rank."""
    error: str | None = None
    result: Any = None
    try:
        result = action()
    except DataError as problem:
        error = str(problem)
    answers: list[Any] = [(error, result)]
    if world.size > 1 and dist.is_available() and dist.is_initialized():
        answers *= world.size
        dist.all_gather_object(answers, (error, result))
    for problem, _ in answers:
        if problem is not None:
            raise DataError(problem)
    return [answer for _, answer in answers]


def from_main(world: World, action: Callable[[], T]) -> T:
    """What `action` returns on rank 0, which alone runs it, on every rank."""
    return together(world, lambda: action() if world.is_main else None)[0]  # type: ignore[return-value]
