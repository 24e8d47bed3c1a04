"""Warnings about the figures of a study: missing runs, differing conditions, implausible
figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

from hpc_amp.campaigns.words import count, joined, on_nodes, percent, percent_between
from hpc_amp.study.curve import Curve, ScaledPoint
from hpc_amp.study.folder import KINDS, Study
from hpc_amp.study.points import MeasuredPoint
from hpc_amp.study.runs import StudyRun

_SAME_FOR_ALL = {
    "device": "hardware",
    "torch": "version of torch",
    "precision": "precision",
    "data": "data",
    "gradient_bytes": "size of the gradients (is it the same model?)",
}
# An efficiency above 1 by more than this, and by more than its uncertainty, is implausible.
_SUPERLINEAR = 0.02
# Relative to the median step or the median rank. Larger values give a warning.
_NOISY = 0.10
_STRAGGLER = 0.10
_FEW_STEPS = 20


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


def caveats_of(study: Study, runs: Sequence[StudyRun], curves: Sequence[Curve]) -> list[Caveat]:
    """All warnings about a study, the most general first. Equal warnings about several points are
    merged, because strong and weak scaling may share runs."""
    points = [scaled.point for curve in curves for scaled in curve.points]
    caveats = [*_incomplete_points(runs), *_overlapped(study, runs)]
    for curve in curves:
        caveats += _weak_reference(study, curve)
    caveats += _differing_conditions(runs, points)
    for curve in curves:
        caveats += _suspicious_figures(curve)
    merged: dict[tuple[str, str], Caveat] = {}
    for caveat in caveats:
        key = (caveat.topic, caveat.said)
        earlier = merged[key].points if key in merged else ()
        merged[key] = replace(caveat, points=(*earlier, *caveat.points))
    return list(merged.values())


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


def _incomplete_points(runs: Sequence[StudyRun]) -> Iterator[Caveat]:
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


def _overlapped(study: Study, runs: Sequence[StudyRun]) -> Iterator[Caveat]:
    """A warning about runs that shared a node with another run of the study at the same time."""
    number = sum(run.state == "overlapped" for run in runs)
    if number:
        option = "--max-queued 1" if study.campaign.submitting == "jobs" else "--max-parallel 1"
        yield Caveat(
            "overlap",
            f"{count(number, 'run')} used a node at the same time as another run of the study, "
            f"and the figures leave them out; to make them again, one at a time: hpc-amp scale "
            f"continue {option}",
        )


def _weak_reference(study: Study, curve: Curve) -> Iterator[Caveat]:
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


def _differing_conditions(
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
    complete = [run for run in point.runs if run.state == "measured" and not point.is_reported]
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
    if not all(point.first.has_batch for point in points):
        yield Caveat(
            "batch",
            f"{points[0].kind}: the program does not report its batch (global_batch), so nothing "
            f"shows whether this is {points[0].kind} scaling",
        )
        return
    weak = bool(points) and points[0].kind == "weak"
    batches = {
        Fraction(run.ranks[0].batch_size, point.nodes if weak else 1)
        for point in points
        for run in point.runs
    }
    if len(batches) > 1 and points[0].is_reported:
        yield _unfit_batch(points)
    elif len(batches) > 1:
        what = "the batch of a node" if weak else "the global batch"
        told = joined([f"{float(batch):g}" for batch in sorted(batches)])
        yield Caveat("batch", f"{points[0].kind}: {what} is not the same in all runs: {told}")


def _unfit_batch(points: Sequence[MeasuredPoint]) -> Caveat:
    """The warning that the user's own program does not have the batches of this kind of scaling."""
    told = joined([f"{point.batch_size:,} on {count(point.nodes, 'node')}" for point in points])
    wanted = "grow with the nodes" if points[0].kind == "weak" else "be the same on all nodes"
    return Caveat(
        "batch",
        f"{points[0].kind}: this is no {points[0].kind} scaling. The global batch that the program "
        f"reports would have to {wanted}, and it is {told}. Does it report the samples of all "
        "ranks?",
    )


def _ranks_per_node(points: Sequence[MeasuredPoint]) -> Iterator[Caveat]:
    densities = {
        Fraction(run.ranks[0].world_size, point.nodes) for point in points for run in point.runs
    }
    if len(densities) > 1:
        told = joined([f"{float(density):g}" for density in sorted(densities)])
        yield Caveat(
            "layout", f"{points[0].kind}: not the same number of ranks a node in all runs: {told}"
        )


def _suspicious_figures(curve: Curve) -> Iterator[Caveat]:
    """Warnings about the points of a curve, and about its fit."""
    for scaled in curve.points:
        yield from _superlinear(scaled, curve)
        yield from _noisy(scaled.point)
        yield from _straggler(scaled.point)
        yield from _measurement(scaled.point)
    yield from _misfit(curve)


def _superlinear(scaled: ScaledPoint, curve: Curve) -> Iterator[Caveat]:
    above = scaled.efficiency - 1
    if above > _SUPERLINEAR and above > (scaled.half_width or 0):
        yield Caveat(
            "superlinear",
            "faster than ideal, efficiency "
            f"{percent_between(scaled.efficiency, scaled.half_width)}. Check the point on "
            f"{count(curve.reference.nodes, 'node')} for a slow node, too little memory or cache, "
            "or waits for data",
            (scaled.point,),
        )


def _noisy(point: MeasuredPoint) -> Iterator[Caveat]:
    median, (low, high) = point.step_seconds, point.step_spread
    said = []
    if (high - low) / median > _NOISY:
        said.append(f"the middle half of all steps spans {percent((high - low) / median)}")
    between = (max(point.run_seconds) - min(point.run_seconds)) / median
    if between > _NOISY:
        said.append(f"its runs differ by {percent(between)}")
    if point.mean_seconds / median - 1 > _NOISY:
        said.append(
            f"the mean step is {percent(point.mean_seconds / median - 1)} longer, so some steps "
            "take much longer than most"
        )
    if said:
        yield Caveat("noisy", f"of the median step, {joined(said)}", (point,))


def _straggler(point: MeasuredPoint) -> Iterator[Caveat]:
    slow = point.slowest
    if slow is not None and slow.excess > _STRAGGLER:
        yield Caveat(
            "straggler",
            f"rank {slow.rank} on {slow.host} takes {percent(slow.excess)} longer than the median "
            f"rank (run {slow.repeat}); all others wait for it",
            (point,),
        )


def _measurement(point: MeasuredPoint) -> Iterator[Caveat]:
    ranks = [rank for run in point.runs for rank in run.ranks]
    fewest = min(rank.measured_steps for rank in ranks)
    if fewest < _FEW_STEPS:
        yield Caveat("steps", f"only {count(fewest, 'step')} measured in a run", (point,))
    if any(rank.warmup_steps == 0 for rank in ranks):
        yield Caveat("warm-up", "the first steps of a run are measured, without warm-up", (point,))
    if point.shares.compute < 0:
        yield Caveat(
            "shares", "data wait and communication together are longer than the step", (point,)
        )
    allreduce = point.allreduce
    if allreduce is not None and allreduce.bytes != point.first.gradient_bytes:
        yield Caveat(
            "all-reduce",
            f"the all-reduce carried {allreduce.bytes:,} bytes, the gradients have "
            f"{point.first.gradient_bytes:,}",
            (point,),
        )


def _misfit(curve: Curve) -> Iterator[Caveat]:
    fit = curve.fit
    if fit is None:
        return
    if not fit.describes:
        yield Caveat(
            "fit",
            f"{curve.kind}: {fit.law}'s law does not describe these points: one deviates by "
            f"{percent(fit.largest_deviation)}",
        )
    elif fit.contradiction:
        yield Caveat(
            "fit",
            f"{curve.kind}: {fit.law}'s law does not hold, with a serial fraction of "
            f"{percent_between(fit.serial_fraction, fit.half_width)}: {fit.contradiction}",
        )
