"""Compare two studies, such as fp32 and fp16, or with and without a container."""

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
class ComparedPoint:
    """A point that both studies have measured."""

    kind: Kind
    nodes: int
    first: ScaledPoint
    second: ScaledPoint

    @property
    def ratio(self) -> float:
        """Samples per second of the second study divided by those of the first."""
        return self.second.point.samples_per_second / self.first.point.samples_per_second

    @property
    def half_width(self) -> float | None:
        """Half the 95 % interval of the ratio; None if one of the studies has a single run."""
        one, two = self.first.point.half_width, self.second.point.half_width
        if one is None or two is None:
            return None
        return self.ratio * math.hypot(one, two)  # independent relative errors add in squares


def labels(first: Analysis, second: Analysis) -> tuple[str, str]:
    """Different labels for two studies: their names; else their names and precisions; else the
    names of their folders."""
    names = [(one.study.name, joined(one.values("precision"))) for one in (first, second)]
    if names[0][0] != names[1][0]:
        return names[0][0], names[1][0]
    if names[0] != names[1]:
        one, two = (f"{name} ({precision or 'nothing measured'})" for name, precision in names)
        return one, two
    return first.study.id, second.study.id


def compare(first: Analysis, second: Analysis) -> list[ComparedPoint]:
    """The points that both studies have measured."""
    found = []
    for kind in KINDS:
        ours, theirs = (
            {s.point.nodes: s for c in one.curves if c.kind == kind for s in c.points}
            for one in (first, second)
        )
        found += [ComparedPoint(kind, n, ours[n], theirs[n]) for n in sorted(ours.keys() & theirs)]
    return found


def differences(first: Analysis, second: Analysis) -> list[str]:
    """The conditions in which the runs of two studies differ, as text."""
    found = []
    for key in _CONDITIONS:
        one, two = joined(first.values(key)), joined(second.values(key))
        if one and two and one != two:
            found.append(f"{key}: {two} against {one}")
    for kind in KINDS:
        batches = [
            (c.first.point.batch_size, c.second.point.batch_size)
            for c in compare(first, second)
            if c.kind == kind and c.first.point.batch_size != c.second.point.batch_size
        ]
        if batches:
            one_batch, two_batch = batches[0]
            found.append(f"batch of {kind} scaling: {two_batch:,} against {one_batch:,}")
    return found


def comparison_table(first: Analysis, second: Analysis) -> Table | None:
    """A table with a row for each point that both studies have measured; None without any."""
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
