"""The sentences of a report: conditions, warnings, and reasons why runs are not measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpc_amp.bench.comparison import Comparison
from hpc_amp.campaigns.reported import NOT_REPORTED
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.timing import RankTiming
from hpc_amp.campaigns.words import count, joined, percent

CPU = (
    "measured on a CPU: the speedups on a GPU are different, because it has special units for low "
    "precision"
)
_WAITING = 0.1
_FEW_REPEATS = 3
_SAME_FOR_ALL = {
    "device": "hardware",
    "torch": "version of torch",
    "data": "data",
    "batch_size": "batch",
    "world_size": "number of ranks",
}


def is_of_cpu(comparison: Comparison) -> bool:
    """Whether the ranks computed on CPUs, or will do so if nothing is measured yet."""
    kinds = [] if comparison.is_reported else comparison.facts("device_type")
    return "cpu" in kinds if kinds else not any(group.gpus for group in comparison.campaign.groups)


def conditions(comparison: Comparison) -> list[str]:
    """Lines with model and data, ranks and machine, versions, TF32 and memory order."""
    first = comparison.first
    if first is None:
        return []
    if comparison.is_reported:
        return _as_reported(comparison, first.ranks[0])
    rank, facts = first.ranks[0], first.facts
    environment: dict[str, Any] = facts.get("environment") or {}
    batches = joined([f"{int(size):,}" for size in comparison.values("batch_size")])
    machine = [joined(comparison.values("device")), f"host {joined(comparison.values('host'))}"]
    if facts.get("device_type") == "cpu" and "threads" in environment:
        machine.append(f"{count(environment['threads'], 'thread')} a rank")
    versions = [
        f"{name} {environment[key]}"
        for key, name in (
            *(("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("python", "Python")),
            ("hpc_amp", "hpc-amp"),
        )
        if environment.get(key)
    ]
    what = ": ".join(str(facts[key]) for key in ("task", "model") if facts.get(key))
    return [
        f"{what} on {rank.data}, batch of {batches} on {count(rank.world_size, 'rank')}",
        f"{count(comparison.warmup, 'step')} of warm-up, "
        f"{count(len(rank.steps), 'step')} measured, "
        f"{count(comparison.campaign.repeats, 'repeat')}",
        ", ".join(machine),
        ", ".join(versions),
        f"{_layout(comparison)}; TF32 {_tf32(comparison)}",
    ]


def _as_reported(comparison: Comparison, rank: RankTiming) -> list[str]:
    """The lines for the user's own program."""
    batches = joined([f"{int(size):,}" for size in comparison.values("batch_size")])
    batch = f"batch of {batches}" if rank.has_batch else "a batch that is not reported"
    known = {
        "device": joined(comparison.values("device")),
        "host": f"host {joined(comparison.values('host'))}",
        "torch": f"torch {joined(comparison.values('torch'))}",
    }
    machine = [words for key, words in known.items() if getattr(rank, key) != NOT_REPORTED]
    return [
        f"own program, {batch} on {count(rank.world_size, 'rank')}, throughput as rank 0 reports "
        "it",
        f"{count(comparison.warmup, 'step')} of warm-up, {count(len(rank.steps), 'report')} "
        f"measured, {count(comparison.campaign.repeats, 'repeat')}",
        *([", ".join(machine)] if machine else []),
    ]


def _layout(comparison: Comparison) -> str:
    orders = comparison.facts("channels_last")
    if len(orders) > 1:
        return "memory order differs between runs"
    return "channels-last (NHWC)" if orders == [True] else "channels-first (NCHW)"


def _tf32(comparison: Comparison) -> str:
    """The settings in which fp32 products may be computed in TF32."""
    states: dict[str, list[str]] = {}
    for row in comparison.rows:
        state = row.runs[0].facts.get("tf32")
        if not isinstance(state, dict):
            words = "does not exist on CPUs"
        elif state.get("matmul") and state.get("convolution"):
            words = "on"
        elif not state.get("matmul") and not state.get("convolution"):
            words = "off"
        else:
            words = "on for " + ("matrices" if state.get("matmul") else "convolutions") + " only"
        states.setdefault(words, []).append(row.label)
    if len(states) == 1:
        return next(iter(states))
    return ", ".join(f"{words} in {joined(names)}" for words, names in states.items())


def warnings(comparison: Comparison) -> Iterator[str]:
    """Warnings, the most important first."""
    if is_of_cpu(comparison):
        yield CPU
    for key, name in _SAME_FOR_ALL.items():
        values = comparison.values(key)
        if len(values) > 1 and not _varies(comparison, key):
            yield f"not the same {name} in all runs: {joined(values)}"
    repeats = comparison.campaign.repeats
    if repeats < _FEW_REPEATS:
        yield f"only {count(repeats, 'repeat')}, so the scatter of runs is not well known"
    waiting = [row for row in comparison.rows if row.data_wait > _WAITING]
    if waiting:
        shares = joined([f"{percent(row.data_wait)} in {row.label}" for row in waiting])
        yield f"steps wait for data ({shares}); a faster precision does not shorten this part"
    first = comparison.first
    if first is not None and first.summary.get("synthetic"):
        yield "synthetic data: the metrics are not those of real data"
    fewest = [
        min(rank.measured_steps for rank in run.ranks)
        for row in comparison.rows
        for run in row.runs
    ]
    planned = comparison.steps
    short = 0 if planned is None else sum(steps < planned for steps in fewest)
    if short and not comparison.is_reported:
        yield f"{count(short, 'run')} with fewer measured steps than planned"


def _varies(comparison: Comparison, key: str) -> bool:
    """Whether a field of `RankTiming` differs because the settings of the benchmark vary it."""
    prefixes = {"batch_size": "train.batch_size", "data": "train.data", "world_size": "job."}
    prefix = prefixes.get(key)
    if key == "batch_size" and comparison.is_reported:
        return bool(comparison.campaign.keys)  # an argument may be the batch
    return prefix is not None and any(one.startswith(prefix) for one in comparison.campaign.keys)


def missing(comparison: Comparison) -> list[str]:
    """A line for each setting with runs that are not measured, with the reason of one of them."""
    by_setting: dict[str, list[PointStatus]] = {}
    for status in comparison.missing:
        by_setting.setdefault(comparison.label(status.point), []).append(status)
    lines = []
    for setting, statuses in by_setting.items():
        one = next((s for s in statuses if s.reason and s.state != "pending"), statuses[0])
        why = f"{one.state}: {one.reason}" if one.reason else one.state
        lines.append(f"{setting}: {count(len(statuses), 'run')} not measured ({why})")
    return lines
