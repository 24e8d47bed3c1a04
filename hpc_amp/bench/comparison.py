"""Compare the settings of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from hpc_amp.bench.plan import PRECISION_KEYS
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.points import Point, short_names
from hpc_amp.campaigns.reported import BATCH, RATE
from hpc_amp.campaigns.spread import quartiles
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.timing import RankTiming
from hpc_amp.jobs.summary import read_summary


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run. `summary` is the content of its `summary.json`."""

    status: PointStatus
    run_dir: Path
    ranks: tuple[RankTiming, ...]
    step_seconds: float
    """The median over all steps and ranks."""
    summary: Mapping[str, Any]

    @property
    def repeat(self) -> int:
        """The number of this run of its setting, from 1."""
        return self.status.point.repeat

    @property
    def facts(self) -> Mapping[str, Any]:
        """The content of the file of rank 0."""
        return self.ranks[0].facts

    @property
    def peak_memory(self) -> int | None:
        """The largest peak memory of its ranks, in bytes; None if no rank has measured it."""
        peaks = (rank.facts.get("peak_memory_bytes") for rank in self.ranks)
        return max((peak for peak in peaks if type(peak) is int), default=None)

    @property
    def samples_per_second(self) -> float:
        """The throughput of all ranks together."""
        return self.ranks[0].batch_size / self.step_seconds

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation, or those that the program reported last."""
        metrics = self.summary.get("metrics") or {}
        return {
            name: value
            for name, value in metrics.items()
            if type(value) in (int, float) and name not in (BATCH, RATE)
        }


@dataclass(frozen=True, slots=True)
class SettingResult:
    """A setting, with the combined measurements of its runs.

    `step_seconds` is the median over its runs of the median over a run's steps and ranks.
    `step_spread` has the quartiles over all steps, and `run_spread` the fastest and slowest run.
    `speedup` is the ratio of its samples per second to those of the first setting. The ratio is
    taken within each repeat, whose runs follow each other on the same machine, and `speedup` is the
    median over the repeats. It is None if no repeat has both runs. `metrics` are the medians of the
    final metrics. `skipped_steps` is the largest number of a run.
    """

    setting: Point
    label: str
    runs: tuple[MeasuredRun, ...]
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
    """The measurements of a benchmark. `missing` are the runs that are not measured."""

    campaign: Campaign
    rows: tuple[SettingResult, ...]
    missing: tuple[PointStatus, ...]

    @property
    def warmup(self) -> int:
        """Steps of a run before the first measured step."""
        return int(self.campaign.options["warmup"])

    @property
    def steps(self) -> int | None:
        """Measured steps of a run; None if all steps of the program are."""
        steps = self.campaign.options["steps"]
        return None if steps is None else int(steps)

    @property
    def is_reported(self) -> bool:
        """Whether the user's own program reported the times."""
        return self.first is not None and self.first.ranks[0].reported

    @property
    def first(self) -> MeasuredRun | None:
        """The first run, for values that should be the same for all runs."""
        return self.rows[0].runs[0] if self.rows else None

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def label(self, point: Point) -> str:
        """A short text for the setting of a point."""
        return label(self.campaign.keys, point)

    def values(self, key: str) -> list[str]:
        """The different values of a field of `RankTiming` over all ranks, sorted."""
        ranks = [rank for row in self.rows for run in row.runs for rank in run.ranks]
        return sorted({str(getattr(rank, key)) for rank in ranks})

    def facts(self, key: str) -> list[Any]:
        """The different values of a key of rank 0's files, in the order of the rows."""
        found: list[Any] = []
        for row in self.rows:
            for run in row.runs:
                value = run.facts.get(key)
                if value not in found:
                    found.append(value)
        return found


def column_names(keys: Sequence[str]) -> list[str]:
    """The titles of the columns for the values of keys."""
    names = zip(keys, short_names(keys), strict=True)
    return ["precision" if key in PRECISION_KEYS else name for key, name in names]


def label(keys: Sequence[str], point: Point) -> str:
    """A short text for the setting of a point: `bf16`, or `bf16 batch_size=64`."""
    words = []
    for name, value in zip(column_names(keys), point.values, strict=True):
        if value is not None:
            words.append(value if name == "precision" else f"{name}={value}")
    return " ".join(words) or "as given"


def compare(campaign: Campaign, statuses: Sequence[PointStatus]) -> Comparison:
    """Combine the runs of each setting."""
    runs: dict[int, list[MeasuredRun]] = {}
    for status in statuses:
        if status.state == "measured" and status.run is not None and status.timing is not None:
            run_dir = Path(status.run.run_dir)
            ranks, seconds = status.timing.ranks, status.timing.step_seconds
            run = MeasuredRun(status, run_dir, ranks, seconds, read_summary(run_dir))
            runs.setdefault(status.index % len(campaign.settings), []).append(run)
    measured = [setting for setting in campaign.settings if setting.index in runs]
    rounds = {}
    if measured:
        rounds = {run.repeat: run.samples_per_second for run in runs[measured[0].index]}
    rows = [
        _row(setting, label(campaign.keys, setting), tuple(runs[setting.index]), rounds)
        for setting in measured
    ]
    missing = tuple(status for status in statuses if status.state != "measured")
    return Comparison(campaign, tuple(rows), missing)


def _row(
    setting: Point, name: str, runs: tuple[MeasuredRun, ...], rounds: Mapping[int, float]
) -> SettingResult:
    ranks = [rank for run in runs for rank in run.ranks]
    medians = [run.step_seconds for run in runs]
    steps = list(chain.from_iterable(rank.steps for rank in ranks))
    ratios = [run.samples_per_second / rounds[run.repeat] for run in runs if run.repeat in rounds]
    seconds = median(medians)
    skipped = [run.summary.get("skipped_steps") for run in runs]
    return SettingResult(
        setting=setting,
        label=name,
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
        skipped_steps=max((number for number in skipped if number is not None), default=None),
    )


def _communication(runs: Sequence[MeasuredRun]) -> float | None:
    """The share of communication, over the steps in which it was measured."""
    seconds = communication = 0.0
    for rank in (rank for run in runs for rank in run.ranks):
        if rank.communication is None:
            continue
        for step, part in zip(rank.steps, rank.communication, strict=True):
            if part is not None:
                seconds += step
                communication += part
    return communication / seconds if seconds else None
