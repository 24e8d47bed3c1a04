"""Actions with one result for all ranks.

Ranks do not check for themselves whether files exist: a shared file system may answer differently
on different nodes for a while, and ranks that continue differently wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpc_amp.data.errors import DataError
from hpc_amp.distributed.collect import from_first, gather, is_alone
from hpc_amp.distributed.world import World

T = TypeVar("T")


def together(world: World, action: Callable[[], T]) -> T:
    """Run `action` on every rank, and return this rank's result. A collective call.

    An error on any rank is raised on every rank, so that no rank waits for another one for ever. It
    is raised unchanged where it happened, and as a DataError on the other ranks.
    """
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
    """Run `action` on rank 0, and return its result on every rank. A collective call. Errors are
    those of `together`."""
    if is_alone(world):
        return action()
    result = together(world, lambda: action() if world.is_main else None)
    # Only ranks other than 0 have None, which mypy cannot see.
    return from_first(world, result)  # type: ignore[return-value]
