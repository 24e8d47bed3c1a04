"""What a benchmark was measured with, and what to be careful about, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpc_amp.bench.comparison import Comparison
from hpc_amp.campaigns.words import count, joined, percent

CPU = (
    "measured on a CPU: these times say nothing about how fast a precision is on a GPU, which has "
    "units of its own for it"
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
    """Whether the ranks computed on CPUs; as planned, where nothing is measured."""
    kinds = comparison.facts("device_type")
    return "cpu" in kinds if kinds else not comparison.bench.gpus


def conditions(comparison: Comparison) -> list[str]:
    """Lines: model and data, ranks and machine, versions, TF32 and memory order."""
    first = comparison.first
    if first is None or first.first is None:
        return []
    rank, facts = first.ranks[0], first.first
    environment: dict[str, Any] = facts.get("environment") or {}
    bench = comparison.bench
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
        f"{what} on {rank.data}, batch of {rank.batch_size:,} on {count(rank.world_size, 'rank')}",
        f"{count(bench.warmup, 'step')} of warm-up, {count(len(rank.steps), 'step')} measured, "
        f"{count(bench.repeats, 'repeat')} in turn",
        ", ".join(machine),
        ", ".join(versions),
        f"{_layout(comparison)}; TF32 {_tf32(comparison)}",
    ]


def _layout(comparison: Comparison) -> str:
    orders = comparison.facts("channels_last")
    if len(orders) > 1:
        return "memory order not the same in all runs"
    return "channels-last (NHWC)" if orders == [True] else "channels-first (NCHW)"


def _tf32(comparison: Comparison) -> str:
    """In which precisions fp32 products may be TF32."""
    states: dict[str, list[str]] = {}
    for row in comparison.rows:
        state = (row.runs[0].first or {}).get("tf32")
        if not isinstance(state, dict):
            words = "does not exist on CPUs"
        elif state.get("matmul") and state.get("convolution"):
            words = "on"
        elif not state.get("matmul") and not state.get("convolution"):
            words = "off"
        else:
            words = "on for " + ("matrices" if state.get("matmul") else "convolutions") + " only"
        states.setdefault(words, []).append(row.precision)
    if len(states) == 1:
        return next(iter(states))
    return ", ".join(f"{words} in {joined(names)}" for words, names in states.items())


def warnings(comparison: Comparison) -> Iterator[str]:
    """Sentences, the most important first."""
    if is_of_cpu(comparison):
        yield CPU
    for key, name in _SAME_FOR_ALL.items():
        values = comparison.values(key)
        if len(values) > 1:
            yield f"not the same {name} in all runs: {joined(values)}"
    bench = comparison.bench
    if bench.repeats < _FEW_REPEATS:
        yield f"only {count(bench.repeats, 'repeat')}: how much runs differ is hardly known"
    waiting = [row for row in comparison.rows if row.data_wait > _WAITING]
    if waiting:
        told = joined([f"{percent(row.data_wait)} in {row.precision}" for row in waiting])
        yield f"steps wait for data ({told}): a faster precision cannot help that part"
    first = comparison.first
    if first is not None and (first.summary or {}).get("synthetic"):
        yield "synthetic data: metrics say nothing about real data"
    short = [run for row in comparison.rows for run in row.runs if _is_short(run.ranks, bench)]
    if short:
        yield f"{count(len(short), 'run')} with fewer measured steps than planned"


def _is_short(ranks: Any, bench: Any) -> bool:
    return any(len(rank.steps) < bench.steps for rank in ranks)


def missing(comparison: Comparison) -> list[str]:
    """A line for each precision with runs that were not measured, with the first one's reason."""
    by_precision: dict[str, list[Any]] = {}
    for result in comparison.missing:
        by_precision.setdefault(result.point.precision, []).append(result)
    lines = []
    for precision, results in by_precision.items():
        told = next((r for r in results if r.reason and r.state != "pending"), results[0])
        why = f"{told.state}: {told.reason}" if told.reason else told.state
        lines.append(f"{precision}: {count(len(results), 'run')} not measured ({why})")
    return lines
