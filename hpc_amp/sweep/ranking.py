"""Rank the points of a sweep by a metric."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.points import SEED, Point
from hpc_amp.campaigns.spread import mean_half_width
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.errors import UsageError
from hpc_amp.jobs.summary import newest_metrics, numbers, read_summary

_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|seconds|time"
    r"|(?<![a-z])(l1|mae|r?mse|nll|ppl|[cw]er|frechet|fid|kid|lpips)(?![a-z])",
    re.IGNORECASE,
)
# The task writes `eval/accuracy`; users also call it `accuracy`.
_PREFIXES = ("", "eval/", "train/")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finished point and its metric."""

    status: PointStatus
    run_dir: Path
    value: float
    synthetic: bool
    """Whether it was trained on synthetic data."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The finished points that only differ in their seed."""

    values: tuple[str | None, ...]
    """Their values, without the seed."""
    points: tuple[Ranked, ...]
    planned: int
    """The number of points of the sweep with these values."""

    @property
    def mean(self) -> float:
        """The mean of the metric over the points."""
        return fmean(point.value for point in self.points)

    @property
    def half_width(self) -> float | None:
        """Half the 95 % interval of the mean; None for a single point."""
        return mean_half_width([point.value for point in self.points])


@dataclass(frozen=True, slots=True)
class Ranking:
    """The points of a sweep: the ranked ones, best first, and the others."""

    sweep: Campaign
    metric: str
    highest_first: bool
    ranked: tuple[Ranked, ...]
    others: tuple[PointStatus, ...]
    """Points that have not finished, or have no such metric; then the reason says so."""

    @property
    def synthetic(self) -> bool:
        """Whether any value comes from synthetic data."""
        return any(point.synthetic for point in self.ranked)

    @property
    def has_repeats(self) -> bool:
        """Whether the seed varies."""
        return SEED in self.sweep.keys

    def settings(self) -> list[Setting]:
        """The ranked points, grouped by their values without the seed; best mean first."""
        together: dict[tuple[str | None, ...], list[Ranked]] = {}
        for point in self.ranked:
            together.setdefault(self._without_seed(point.status.point), []).append(point)
        planned = Counter(map(self._without_seed, self.sweep.points))
        settings = [
            Setting(values, tuple(points), planned[values]) for values, points in together.items()
        ]
        return sorted(settings, key=lambda one: -one.mean if self.highest_first else one.mean)

    def _without_seed(self, point: Point) -> tuple[str | None, ...]:
        pairs = zip(self.sweep.keys, point.values, strict=True)
        return tuple(value for key, value in pairs if key != SEED)


def rank(
    sweep: Campaign,
    statuses: Sequence[PointStatus],
    metric: str | None = None,
    highest_first: bool | None = None,
) -> Ranking:
    """Rank the finished points by `metric`, or by the best metric of their task.

    `highest_first` says whether the highest value is best. By default, the task decides this for
    its best metric, and the name decides it for others: lower losses, errors and times are better.
    Raises UsageError if points have finished, but none has the metric.
    """
    best = _best_of_task(statuses)
    if metric is None:
        metric = str(best.get("metric") or _only_metric(statuses) or "accuracy")
    if highest_first is None:
        highest_first = not _LOWER_IS_BETTER.search(metric)
        if best.get("metric") == metric:
            highest_first = best.get("direction") == "highest"
    ranked: list[Ranked] = []
    others: list[PointStatus] = []
    known: set[str] = set()
    for status in statuses:
        if status.state != "finished" or status.run is None:
            others.append(status)
            continue
        run_dir = Path(status.run.run_dir)
        summary = read_summary(run_dir)
        value = _value(metric, summary, run_dir, known)
        if value is None:
            reason = f"it has no metric {metric}, or its value is not a number"
            others.append(replace(status, reason=reason))
        else:
            ranked.append(Ranked(status, run_dir, value, summary.get("synthetic") is True))
    if not ranked and any(status.state == "finished" for status in others):
        hint = f"--metric NAME ranks by one of {', '.join(sorted(known))}" if known else None
        raise UsageError(f"no finished point has a metric {metric!r}", hint=hint)
    ranked.sort(key=lambda point: -point.value if highest_first else point.value)
    return Ranking(sweep, metric, highest_first, tuple(ranked), tuple(others))


def _only_metric(statuses: Sequence[PointStatus]) -> str | None:
    """The metric of a program that reports a single one."""
    for status in statuses:
        if status.state == "finished" and status.run is not None:
            metrics = read_summary(Path(status.run.run_dir)).get("metrics") or {}
            return next(iter(metrics)) if len(metrics) == 1 else None
    return None


def _best_of_task(statuses: Sequence[PointStatus]) -> dict[str, Any]:
    """`best` of the first summary that has it: the best metric of the task, and its direction."""
    for status in statuses:
        if status.state == "finished" and status.run is not None:
            best = read_summary(Path(status.run.run_dir)).get("best")
            if isinstance(best, dict):
                return best
    return {}


def _value(metric: str, summary: dict[str, Any], run_dir: Path, known: set[str]) -> float | None:
    """The metric of a run, from its summary, else the newest value in `metrics.jsonl`; None if that
    is not finite, whatever was reported before. Adds the names of all metrics that it reads to
    `known`."""
    metrics = summary.get("metrics")
    if isinstance(metrics, dict):
        summary = {**summary, **metrics}
    for values in itertools.chain([numbers(summary)], newest_metrics(run_dir)):
        known.update(values)
        for prefix in _PREFIXES:
            value = values.get(prefix + metric)
            if value is not None:
                return float(value) if math.isfinite(value) else None
    return None
