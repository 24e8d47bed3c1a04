"""Warnings about runs of a study that are not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from hpc_amp.campaigns.words import count, joined, on_nodes
from hpc_amp.study.caveat import Caveat
from hpc_amp.study.curve import Curve
from hpc_amp.study.folder import Study
from hpc_amp.study.runs import StudyRun


def incomplete_points(runs: Sequence[StudyRun]) -> Iterator[Caveat]:
    """Warnings about points with missing runs, and about files that cannot be used."""
    for (kind, nodes), own in groupby(runs, key=lambda run: (run.planned.kind, run.planned.nodes)):
        repeats = list(own)
        states = Counter(run.state for run in repeats if run.state != "measured")
        if states:
            told = joined([f"{number} {state}" for state, number in states.items()])
            yield Caveat(
                "incomplete",
                f"{kind}, {count(nodes, 'node')}: {len(repeats) - states.total()} of "
                f"{count(len(repeats), 'run')} measured ({told})",
            )
    lines = [line for run in runs for line in run.damaged]
    if lines:
        yield Caveat(
            "damaged", f"{count(len(lines), 'file')} cannot be used; the first one: {lines[0]}"
        )


def weak_reference(study: Study, curve: Curve) -> Iterator[Caveat]:
    """Warnings about the reference of a curve, and about points with a single run."""
    reference = curve.reference
    if reference.nodes > min(study.nodes):
        yield Caveat(
            "reference",
            f"{curve.kind}: {count(min(study.nodes), 'node')} not measured yet, so speedup and "
            f"efficiency are relative to {count(reference.nodes, 'node')}",
        )
    single = [s.point.nodes for s in curve.points if s.point.half_width is None]
    if single:
        yield Caveat(
            "repeats",
            f"{curve.kind}: one run {on_nodes(single)}, so the scatter of runs is unknown",
        )
