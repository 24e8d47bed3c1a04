"""The precisions of a benchmark beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from hpc_amp.bench.folder import Bench
from hpc_amp.bench.results import Result
from hpc_amp.campaigns.spread import quartiles


@dataclass(frozen=True, slots=True)
class Row:
    """One precision: all its runs put together.

    `step_seconds` is the median over its runs of the median over a run's steps and ranks;
    `step_spread` has the quartiles over all steps, `run_spread` the fastest and the slowest run.
    `speedup` is how many times as fast it is as the first precision: the median over repeats of the
    ratio of two runs of one round, which met the same machine; None for want of a round that both
    measured. `metrics` are medians of what the task measured at the end. `skipped_steps` is of the
    run with most.
    """

    precision: str
    runs: tuple[Result, ...]
    step_seconds: float
    step_spread: tuple[float, float]
    run_spread: tuple[float, float]
    samples_per_second: float
    speedup: float | None
    speedup_spread: tuple[float, float] | None
    peak_memory: int | None
    data_wait: float
    communication: float | None
    metrics: dict[str, float]
    skipped_steps: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmark as far as it is measured. `missing` are the runs that are not."""

    bench: Bench
    rows: tuple[Row, ...]
    missing: tuple[Result, ...]

    @property
    def first(self) -> Result | None:
        """A run of it, for what all should have in common."""
        return self.rows[0].runs[0] if self.rows else None

    @property
    def metrics(self) -> list[str]:
        """The names of what the task measures."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def values(self, key: str) -> list[str]:
        """The different values of a field of `RankTiming` over all ranks, sorted."""
        ranks = [rank for row in self.rows for run in row.runs for rank in run.ranks]
        return sorted({str(getattr(rank, key)) for rank in ranks})

    def facts(self, key: str) -> list[Any]:
        """The different values of a key of rank 0's files, in the order of the rows."""
        found: list[Any] = []
        for row in self.rows:
            for run in row.runs:
                value = (run.first or {}).get(key)
                if value not in found:
                    found.append(value)
        return found


def compare(bench: Bench, results: Sequence[Result]) -> Comparison:
    """Put the runs of each precision together."""
    measured = [result for result in results if result.is_measured]
    base = next(
        (p for p in bench.precisions if any(r.point.precision == p for r in measured)), None
    )
    rounds = {r.point.repeat: r.step_seconds for r in measured if r.point.precision == base}
    rows = []
    for precision in bench.precisions:
        runs = tuple(result for result in measured if result.point.precision == precision)
        if runs:
            rows.append(_row(precision, runs, rounds))
    missing = tuple(result for result in results if not result.is_measured)
    return Comparison(bench, tuple(rows), missing)


def _row(precision: str, runs: tuple[Result, ...], rounds: dict[int, float]) -> Row:
    ranks = [rank for run in runs for rank in run.ranks]
    medians = [run.step_seconds for run in runs]
    steps = list(chain.from_iterable(rank.steps for rank in ranks))
    ratios = [
        rounds[run.point.repeat] / seconds
        for run, seconds in zip(runs, medians, strict=True)
        if run.point.repeat in rounds
    ]
    seconds = median(medians)
    return Row(
        precision=precision,
        runs=runs,
        step_seconds=seconds,
        step_spread=quartiles(steps),
        run_spread=(min(medians), max(medians)),
        samples_per_second=ranks[0].batch_size / seconds,
        speedup=median(ratios) if ratios else None,
        speedup_spread=(min(ratios), max(ratios)) if ratios else None,
        peak_memory=max((run.peak_memory for run in runs if run.peak_memory), default=None),
        data_wait=sum(chain.from_iterable(rank.data_wait for rank in ranks)) / sum(steps),
        communication=_communication(runs),
        metrics={
            name: median(run.metrics[name] for run in runs if name in run.metrics)
            for name in runs[0].metrics
        },
        skipped_steps=max(
            (n for run in runs if (n := (run.summary or {}).get("skipped_steps")) is not None),
            default=None,
        ),
    )


def _communication(runs: Sequence[Result]) -> float | None:
    """The share of communication in the steps in which it was measured."""
    pairs = [
        (step, part)
        for run in runs
        for rank in run.ranks
        if rank.communication is not None
        for step, part in zip(rank.steps, rank.communication, strict=True)
        if part is not None
    ]
    return sum(part for _, part in pairs) / sum(step for step, _ in pairs) if pairs else None
