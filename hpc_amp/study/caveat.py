"""A warning about the figures of a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpc_amp.campaigns.words import joined
from hpc_amp.study.folder import KINDS
from hpc_amp.study.points import MeasuredPoint


@dataclass(frozen=True, slots=True)
class Caveat:
    """A warning about the figures of a study."""

    topic: str
    """A word that identifies the kind of warning, for scripts."""
    said: str
    """The warning as a sentence without its place."""
    points: tuple[MeasuredPoint, ...] = ()
    """The points that it is about. Empty if it is about the study, or if `said` names the place."""

    @property
    def text(self) -> str:
        """The warning with its place: `strong, 4 nodes: only 5 steps measured in a run`."""
        return f"{_places(self.points)}: {self.said}" if self.points else self.said


def merged(caveats: Iterable[Caveat]) -> list[Caveat]:
    """Merge equal warnings about several points, in the order of the first ones. Strong and weak
    scaling may share runs, which would otherwise be reported twice."""
    found: dict[tuple[str, str], Caveat] = {}
    for caveat in caveats:
        key = (caveat.topic, caveat.said)
        earlier = found[key].points if key in found else ()
        found[key] = replace(caveat, points=(*earlier, *caveat.points))
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
