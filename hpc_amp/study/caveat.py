"""A warning about the figures of a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpc_amp.campaigns.words import joined
from hpc_amp.study.folder import KINDS
from hpc_amp.study.points import MeasuredPoint


@dataclass(frozen=True, slots=True)
class Caveat:
    """One warning. `topic` is a word for scripts, `said` what is so, and `points` where: none for
    the study as a whole, or where `said` has the place."""

    topic: str
    said: str
    points: tuple[MeasuredPoint, ...] = ()

    @property
    def text(self) -> str:
        """A sentence for people: `strong, 4 nodes: only 5 steps measured in a run`."""
        return f"{_places(self.points)}: {self.said}" if self.points else self.said


def merged(caveats: Iterable[Caveat]) -> list[Caveat]:
    """What is the same of several points as one warning, where the first of them stood. Runs that
    strong and weak scaling share would be told of twice otherwise."""
    found: dict[tuple[str, str], Caveat] = {}
    for caveat in caveats:
        key = (caveat.topic, caveat.said)
        before = found.get(key, replace(caveat, points=()))
        found[key] = replace(before, points=(*before.points, *caveat.points))
    return list(found.values())


def _places(points: Iterable[MeasuredPoint]) -> str:
    """`strong, 4 nodes`, `strong and weak, 2 and 4 nodes`, `strong, 2 nodes; weak, 4 nodes`."""
    nodes = {kind: sorted({p.nodes for p in points if p.kind == kind}) for kind in KINDS}
    kinds_on: dict[tuple[int, ...], list[str]] = {}
    for kind, numbers in nodes.items():
        if numbers:
            kinds_on.setdefault(tuple(numbers), []).append(kind)
    return "; ".join(
        f"{joined(kinds)}, {joined([f'{n:,}' for n in numbers])} node{'s' * (numbers != (1,))}"
        for numbers, kinds in kinds_on.items()
    )
