"""A sweep in the parts that are submitted: arrays of points that ask for the same, none larger
than the scheduler takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hpc_amp.errors import UsageError
from hpc_amp.sweep.folder import Group


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """One array that is to be."""

    number: int
    """From 1 on, over all submissions of the sweep."""
    group: Group
    points: tuple[int, ...]
    at_once: int | None
    """How many of its tasks may run at the same time."""

    @property
    def script_name(self) -> str:
        """Its file in the sweep's folder."""
        return f"array-{self.number}.sh"


def cut(
    groups: Sequence[Group],
    wanted: Collection[int],
    *,
    largest: int,
    first_number: int,
    at_once: int | None,
) -> list[ArrayPart]:
    """The parts of a submission of the `wanted` points. Together they stay within `at_once`, of
    which each gets an equal share. Raises UsageError where that is less than one."""
    pieces = [piece for group in groups for piece in _pieces(group, wanted, largest)]
    if at_once is not None and at_once < len(pieces):
        raise UsageError(
            f"the sweep becomes {len(pieces)} arrays: {at_once} at once is less than one of each",
            hint=f"give --max-parallel {len(pieces)} or more",
        )
    parts = []
    for index, (group, points) in enumerate(pieces):
        share = None
        if at_once is not None:
            share = at_once // len(pieces) + (index < at_once % len(pieces))
        parts.append(ArrayPart(first_number + index, group, points, share))
    return parts


def _pieces(
    group: Group, wanted: Collection[int], largest: int
) -> Iterator[tuple[Group, tuple[int, ...]]]:
    points = [point for point in group.points if point in wanted]
    for start in range(0, len(points), largest):
        yield group, tuple(points[start : start + largest])
