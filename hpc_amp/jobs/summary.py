"""The summary of a run as text: its results and the paths of its files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from hpc_amp.config.units import format_duration
from hpc_amp.errors import to_type
from hpc_amp.files import read_json
from hpc_amp.jobs.status import RunStatus

_TAIL = 64 * 2**10
_BATCH, _RATE = "global_batch", "samples_per_second"
"""Numbers of a program that tell its speed, and are not results."""


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read `summary.json` of a run, with the numbers that a program of the user's reported last.
    Empty if the run has not written it."""
    summary = read_json(run_dir / "summary.json")
    if not isinstance(summary.get("metrics"), dict | None):
        summary["metrics"] = None
    if summary and summary.get("metrics") is None:
        metrics: dict[str, float] = {}
        rates: list[float] = []
        for line in newest_metrics(run_dir, last_bytes=_TAIL):
            rates += [line[_RATE]] if line.get(_RATE, 0) > 0 else []
            metrics = {**line, **metrics}
        summary["metrics"] = {
            name: value for name, value in metrics.items() if name not in (_BATCH, _RATE)
        }
        if rates:
            summary["samples_per_second"] = median(rates)
    return summary


def newest_metrics(run_dir: Path, last_bytes: int | None = None) -> Iterator[dict[str, float]]:
    """The numbers in each line of `metrics.jsonl`, newest first, without `step` and `time`. With
    `last_bytes`, only the end of the file is read. Nothing if there is no such file."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
            lines = file.read().splitlines()
    except OSError:
        return
    for line in reversed(lines):
        try:
            values = json.loads(line)
        except ValueError:
            continue  # cut off at its beginning, or being written
        if isinstance(values, dict):
            yield numbers(values)


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The values that are numbers, without `step` and `time`."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in ("step", "time")
    }


def describe(status: RunStatus) -> str:
    """The summary of a run as lines of text, such as those at the end of `submit --follow`."""
    run_dir = Path(status.run_dir)
    facts = read_summary(run_dir)
    outcome = f"{status.state} ({status.reason})" if status.reason else status.state
    rows = [("outcome", outcome)]
    if status.state in ("finished", "checkpointed", "cancelled"):
        rows += _results(facts)
    rows += _explanation(status)
    rows += _places(run_dir)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}" for name, value in rows]
    return "\n".join([f"{status.name}: {status.state}", *lines, *_next_steps(status)])


def _explanation(status: RunStatus) -> list[tuple[str, str]]:
    if status.state not in ("failed", "lost"):
        return []
    return explanation(status.run_dir, status.state, status.reason)


def explanation(run_dir: str, state: str, reason: str) -> list[tuple[str, str]]:
    """Cause and fix of a failure, if they are known. Of a large log, only the beginning and the end
    are searched."""
    from hpc_amp.explain.run import explain_failure

    try:
        rows = explain_failure(run_dir, state, reason).in_short()
    except OSError:
        return []  # the log cannot be read
    is_repeated = bool(rows and reason) and reason in rows[0][1]
    return [] if is_repeated else rows


def _results(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if facts.get("data"):
        data = facts["data"]
        if facts.get("synthetic"):
            data = f"{data.upper()} (results say nothing about real data)"
        rows.append(("data", data))
    rows += [(name, f"{value:.4g}") for name, value in (facts.get("metrics") or {}).items()]
    best = facts.get("best") or {}
    if best.get("value") is not None:
        rows.append((f"best {best['metric']}", f"{best['value']:.4g}"))
    rows += [("warning", text) for text in facts.get("warnings") or []]
    if facts.get("samples_per_second"):
        rows.append(("speed", f"{facts['samples_per_second']:,.0f} samples/s"))
    ranks, nodes = facts.get("world_size"), facts.get("nodes")
    if ranks:
        unit = "node" if nodes == 1 else "nodes"
        device = f" ({facts['device']})" if facts.get("device") else ""
        rows.append(("ranks", f"{ranks} on {nodes} {unit}{device}"))
    if facts.get("precision"):
        rows.append(("precision", facts["precision"] + _scaling(facts)))
    if facts.get("steps") is not None:
        total = facts.get("total_steps")
        rows.append(("steps", f"{facts['steps']}" + (f" of {total}" if total else "")))
    if facts.get("seconds") is not None:
        rows.append(("time", format_duration(facts["seconds"])))
    return rows


def _scaling(facts: dict[str, Any]) -> str:
    if facts.get("loss_scale") is None:
        return ""
    return f", loss scale {facts['loss_scale']:g}, {facts['skipped_steps']} steps skipped"


def _places(run_dir: Path) -> list[tuple[str, str]]:
    checkpoints = sorted((run_dir / "checkpoints").glob("step-*"))
    rows = [("run", str(run_dir)), ("log", str(run_dir / "logs" / "job.log"))]
    if checkpoints:
        rows.append(("checkpoint", str(checkpoints[-1])))
    board = run_dir / "tensorboard"
    if board.is_dir():
        rows.append(("tensorboard", str(board)))
        rows.append(("look at it", f"tensorboard --logdir {shlex.quote(str(board))}"))
    return rows


def _next_steps(status: RunStatus) -> list[str]:
    resume = to_type("resume", status.run_dir)
    if status.state in ("failed", "lost"):
        return [f"see the log above, then: {resume}"]
    if status.state in ("checkpointed", "cancelled"):
        return [f"continue with: {resume}"]
    return []
