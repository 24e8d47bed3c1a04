"""Warnings about conditions that differ between the runs of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from hpc_amp.campaigns.words import count, joined, on_nodes
from hpc_amp.study.caveat import Caveat
from hpc_amp.study.points import MeasuredPoint
from hpc_amp.study.runs import StudyRun

_SAME_FOR_ALL = {
    "device": "hardware",
    "torch": "version of torch",
    "precision": "precision",
    "data": "data",
    "gradient_bytes": "size of the gradients (is it the same model?)",
}


def differing_conditions(
    runs: Sequence[StudyRun], points: Sequence[MeasuredPoint]
) -> Iterator[Caveat]:
    """Warnings about hardware, versions, batches and numbers of ranks that differ between runs."""
    for key, name in _SAME_FOR_ALL.items():
        nodes_of: dict[str, set[int]] = {}
        for run in runs:
            for rank in run.ranks:
                nodes_of.setdefault(str(getattr(rank, key)), set()).add(run.planned.nodes)
        if len(nodes_of) > 1:
            told = [f"{value} ({on_nodes(nodes)})" for value, nodes in sorted(nodes_of.items())]
            yield Caveat("mixed", f"not the same {name} in all runs: {joined(told)}")
    for point in points:
        yield from _layout(point)
    for kind in ("strong", "weak"):
        yield from _batch([point for point in points if point.kind == kind])
        yield from _ranks_per_node([point for point in points if point.kind == kind])


def _layout(point: MeasuredPoint) -> Iterator[Caveat]:
    """Warnings about a point that ran on other nodes than planned."""
    other = sorted({run.ranks[0].nodes for run in point.runs} - {point.nodes})
    if other:
        yield Caveat("layout", f"ran {on_nodes(other)} instead", (point,))
    complete = [run for run in point.runs if run.state == "measured"]
    hosts = min((len({rank.host for rank in run.ranks}) for run in complete), default=point.nodes)
    if hosts < point.nodes:
        yield Caveat(
            "layout",
            f"all ranks were on {count(hosts, 'machine')}, so the figures are not those of more "
            "nodes",
            (point,),
        )


def _batch(points: Sequence[MeasuredPoint]) -> Iterator[Caveat]:
    """A warning if the batch differs: the global batch, or that of a node in weak scaling."""
    weak = bool(points) and points[0].kind == "weak"
    batches = {
        Fraction(run.ranks[0].batch_size, point.nodes if weak else 1)
        for point in points
        for run in point.runs
    }
    if len(batches) > 1:
        what = "the batch of a node" if weak else "the global batch"
        told = joined([f"{float(batch):g}" for batch in sorted(batches)])
        yield Caveat("batch", f"{points[0].kind}: {what} is not the same in all runs: {told}")


def _ranks_per_node(points: Sequence[MeasuredPoint]) -> Iterator[Caveat]:
    densities = {
        Fraction(run.ranks[0].world_size, point.nodes) for point in points for run in point.runs
    }
    if len(densities) > 1:
        told = joined([f"{float(density):g}" for density in sorted(densities)])
        yield Caveat(
            "layout", f"{points[0].kind}: not the same number of ranks a node in all runs: {told}"
        )
