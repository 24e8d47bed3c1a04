"""One answer for all ranks.

Whether files exist is never asked by each rank for itself: shared file systems answer differently
on different nodes for a while, and ranks that go different ways hang each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpc_amp.data.errors import DataError
from hpc_amp.distributed.collect import gather, is_alone
from hpc_amp.distributed.world import World

T = TypeVar("T")


def together(world: World, action: Callable[[], T]) -> T:
    """Run `action` on every rank, wait for all, and return this rank's result. An error on any rank
    is raised on every rank, so that none goes on and waits for the others for ever: as it is where
    it happened, elsewhere as a DataError."""
    error: Exception | None = None
    try:
        result = action()
    except Exception as problem:
        error = problem
    messages = gather(world, None if error is None else str(error) or repr(error))
    if error is not None:
        raise error
    for message in messages:
        if message is not None:
            raise DataError(message)
    return result


def from_main(world: World, action: Callable[[], T]) -> T:
    """What `action` returns on rank 0, which alone runs it, on every rank."""
    if is_alone(world):
        return action()
    result = together(world, lambda: action() if world.is_main else None)
    # None stands for the other ranks alone, which mypy cannot know.
    return gather(world, result)[0]  # type: ignore[return-value]
