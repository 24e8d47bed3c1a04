"""Warnings about implausible figures, and about figures with a large scatter."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_amp.campaigns.words import count, joined, percent, percent_between
from hpc_amp.study.caveat import Caveat
from hpc_amp.study.curve import Curve, ScaledPoint
from hpc_amp.study.points import MeasuredPoint

# An efficiency above 1 by more than this, and by more than its uncertainty, is implausible.
SUPERLINEAR = 0.02
# Relative to the median step or the median rank. Larger values give a warning.
NOISY = 0.10
STRAGGLER = 0.10
FEW_STEPS = 20


def suspicious_figures(curve: Curve) -> Iterator[Caveat]:
    """Warnings about the points of a curve, and about its fit."""
    for scaled in curve.points:
        yield from _superlinear(scaled, curve)
        yield from _noisy(scaled.point)
        yield from _straggler(scaled.point)
        yield from _measurement(scaled.point)
    yield from _misfit(curve)


def _superlinear(scaled: ScaledPoint, curve: Curve) -> Iterator[Caveat]:
    above = scaled.efficiency - 1
    if above > SUPERLINEAR and above > (scaled.half_width or 0):
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
    if (high - low) / median > NOISY:
        said.append(f"the middle half of all steps spans {percent((high - low) / median)}")
    between = (max(point.run_seconds) - min(point.run_seconds)) / median
    if between > NOISY:
        said.append(f"its runs differ by {percent(between)}")
    if point.mean_seconds / median - 1 > NOISY:
        said.append(
            f"the mean step is {percent(point.mean_seconds / median - 1)} longer, so some steps "
            "take much longer than most"
        )
    if said:
        yield Caveat("noisy", f"of the median step, {joined(said)}", (point,))


def _straggler(point: MeasuredPoint) -> Iterator[Caveat]:
    slow = point.slowest
    if slow is not None and slow.excess > STRAGGLER:
        yield Caveat(
            "straggler",
            f"rank {slow.rank} on {slow.host} takes {percent(slow.excess)} longer than the median "
            f"rank (run {slow.repeat}); all others wait for it",
            (point,),
        )


def _measurement(point: MeasuredPoint) -> Iterator[Caveat]:
    ranks = [rank for run in point.runs for rank in run.ranks]
    fewest = min(len(rank.steps) for rank in ranks)
    if fewest < FEW_STEPS:
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
