"""Two studies next to each other: fp32 and fp16, container and bare."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpc_amp.campaigns.tables import Table
from hpc_amp.campaigns.words import joined, percent, significant
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.curve import ScaledPoint
from hpc_amp.study.folder import KINDS, Kind

_CONDITIONS = ("precision", "device", "torch", "data")


@dataclass(frozen=True, slots=True)
class Compared:
    """A point that both studies measured. `ratio` is samples per second of the second study over
    those of the first, `half_width` half its 95 % interval, None where one has a single run."""

    kind: Kind
    nodes: int
    first: ScaledPoint
    second: ScaledPoint

    @property
    def ratio(self) -> float:
        """How many times as fast the second study is."""
        return self.second.point.samples_per_second / self.first.point.samples_per_second

    @property
    def half_width(self) -> float | None:
        """Of the ratio: independent relative errors add in squares."""
        one, two = self.first.point.half_width, self.second.point.half_width
        return None if one is None or two is None else self.ratio * math.hypot(one, two)


def labels(first: Analysis, second: Analysis) -> tuple[str, str]:
    """What to call the two: by their names, where these are the same by precision too, and else by
    the names of their folders."""
    names = [(one.study.name, joined(one.values("precision"))) for one in (first, second)]
    if names[0][0] != names[1][0]:
        return names[0][0], names[1][0]
    if names[0] != names[1]:
        told = [f"{name} ({precision or 'nothing measured'})" for name, precision in names]
        return told[0], told[1]
    return first.study.id, second.study.id


def compare(first: Analysis, second: Analysis) -> list[Compared]:
    """The points that both measured."""
    found = []
    for kind in KINDS:
        ours, theirs = (
            {s.point.nodes: s for c in one.curves if c.kind == kind for s in c.points}
            for one in (first, second)
        )
        found += [Compared(kind, n, ours[n], theirs[n]) for n in sorted(ours.keys() & theirs)]
    return found


def differences(first: Analysis, second: Analysis) -> list[str]:
    """In what the runs of the two differ, beside what they measured."""
    told = []
    for key in _CONDITIONS:
        one, two = joined(first.values(key)), joined(second.values(key))
        if one and two and one != two:
            told.append(f"{key}: {two} against {one}")
    for kind in KINDS:
        batches = [
            (c.first.point.batch_size, c.second.point.batch_size)
            for c in compare(first, second)
            if c.kind == kind and c.first.point.batch_size != c.second.point.batch_size
        ]
        if batches:
            one_batch, two_batch = batches[0]
            told.append(f"batch of {kind} scaling: {two_batch:,} against {one_batch:,}")
    return told


def comparison_table(first: Analysis, second: Analysis) -> Table | None:
    """One row a point that both measured, or None where there is none."""
    one, two = labels(first, second)
    columns = (
        "scaling", "nodes", f"{one} samples/s", f"{two} samples/s", "ratio",
        f"{one} efficiency", f"{two} efficiency",
    )  # fmt: skip
    rows = tuple(
        (
            c.kind,
            f"{c.nodes:,}",
            significant(c.first.point.samples_per_second),
            significant(c.second.point.samples_per_second),
            f"{c.ratio:.2f}" + (f" ± {c.half_width:.2f}" if c.half_width is not None else ""),
            percent(c.first.efficiency, 1),
            percent(c.second.efficiency, 1),
        )
        for c in compare(first, second)
    )
    return Table(columns, rows, words=frozenset({"scaling"})) if rows else None
