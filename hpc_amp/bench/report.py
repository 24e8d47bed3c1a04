"""A comparison as text, as JSON, and as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_amp.bench.comparison import Comparison, Row
from hpc_amp.bench.folder import Bench
from hpc_amp.bench.picture import draw
from hpc_amp.bench.results import Result
from hpc_amp.bench.sentences import conditions, is_of_cpu, missing, warnings
from hpc_amp.campaigns.output import Written, why_no_pictures, write_file
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.campaigns.words import (
    NOT_KNOWN,
    count,
    joined,
    mebibytes,
    milliseconds,
    one_line,
    significant,
)

_COLUMNS = (
    "precision", "runs", "step ms", "middle half", "samples/s", "speedup", "memory MiB",
)  # fmt: skip


def to_text(comparison: Comparison) -> str:
    """For a terminal."""
    bench = comparison.bench
    parts = ["\n".join([f"{bench.name}  {bench.folder.name}", *conditions(comparison)])]
    if comparison.rows:
        rows = tuple(_cells(comparison, row) for row in comparison.rows)
        columns = (*_COLUMNS, *comparison.metrics, "skipped")
        table = Table(columns, rows, words=frozenset({"precision"}))
        parts.append("\n".join(as_text(table)))
    for title, lines in (
        ("not measured", missing(comparison)),
        ("warnings", list(warnings(comparison))),
    ):
        if lines:
            parts.append("\n".join([title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def _cells(comparison: Comparison, row: Row) -> tuple[str, ...]:
    low, high = row.step_spread
    return (
        row.precision,
        f"{len(row.runs)}/{comparison.bench.repeats}",
        milliseconds(row.step_seconds),
        f"{milliseconds(low)}-{milliseconds(high)}",
        significant(row.samples_per_second),
        NOT_KNOWN if row.speedup is None else f"{row.speedup:.2f}",
        NOT_KNOWN if row.peak_memory is None else mebibytes(row.peak_memory),
        *(
            f"{row.metrics[name]:.4f}" if name in row.metrics else NOT_KNOWN
            for name in comparison.metrics
        ),
        NOT_KNOWN if row.skipped_steps is None else str(row.skipped_steps),
    )


def describe(bench: Bench, results: Sequence[Result]) -> str:
    """A line of totals, then one line a run."""
    states = Counter(result.state for result in results)
    told = joined([f"{number} {state}" for state, number in states.items()])
    rows = tuple(
        (
            result.point.precision,
            str(result.point.repeat),
            result.state,
            milliseconds(result.step_seconds) if result.is_measured else NOT_KNOWN,
            one_line(result.reason) or NOT_KNOWN,
        )
        for result in results
    )
    columns = ("precision", "repeat", "state", "step ms", "reason")
    table = Table(columns, rows, words=frozenset({"precision", "state", "reason"}))
    head = f"{bench.name}  {bench.folder.name}  {count(len(results), 'run')}: {told}"
    return "\n".join([head, "", *(f"  {line}" for line in as_text(table))])


def to_plain(bench: Bench, results: Sequence[Result]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "name": bench.name,
        "folder": str(bench.folder),
        "runs": [
            {
                "precision": result.point.precision,
                "repeat": result.point.repeat,
                "state": result.state,
                "reason": result.reason,
                "step_seconds": result.step_seconds if result.is_measured else None,
                "run_dir": str(result.run_dir),
            }
            for result in results
        ],
    }


def to_json(comparison: Comparison) -> str:
    """For programs: everything, in seconds, bytes and parts of one."""
    bench, first = comparison.bench, comparison.first
    facts: dict[str, Any] = (first.first or {}) if first is not None else {}
    kept = (
        *("batch_size", "world_size", "nodes", "gpus_per_node", "data", "gradient_bytes"),
        *("task", "model", "device", "device_type", "channels_last", "environment"),
    )
    content = {
        "name": bench.name,
        "id": bench.folder.name,
        "created": bench.created,
        "warmup_steps": bench.warmup,
        "steps": bench.steps,
        "repeats": bench.repeats,
        "conditions": {key: facts.get(key) for key in kept},
        "hosts": comparison.values("host"),
        "speed_says_nothing_for_gpus": is_of_cpu(comparison),
        "precisions": [_row(row) for row in comparison.rows],
        "not_measured": [
            {
                "precision": result.point.precision,
                "repeat": result.point.repeat,
                "state": result.state,
                "reason": result.reason,
                "run_dir": str(result.run_dir),
            }
            for result in comparison.missing
        ],
        "warnings": list(warnings(comparison)),
    }
    return json.dumps(content, indent=1) + "\n"


def _row(row: Row) -> dict[str, Any]:
    return {
        "precision": row.precision,
        "tf32": (row.runs[0].first or {}).get("tf32"),
        "step_seconds": row.step_seconds,
        "step_quartiles": row.step_spread,
        "fastest_and_slowest_run": row.run_spread,
        "samples_per_second": row.samples_per_second,
        "speedup": row.speedup,
        "speedup_of_rounds": row.speedup_spread,
        "peak_memory_bytes": row.peak_memory,
        "data_wait": row.data_wait,
        "communication": row.communication,
        "metrics": row.metrics,
        "skipped_steps": row.skipped_steps,
        "runs": [
            {
                "repeat": run.point.repeat,
                "step_seconds": run.step_seconds,
                "peak_memory_bytes": run.peak_memory,
                "metrics": run.metrics,
                "skipped_steps": (run.summary or {}).get("skipped_steps"),
                "run_dir": str(run.run_dir),
            }
            for run in row.runs
        ],
    }


def write_report(comparison: Comparison, folder: Path) -> Written:
    """Write `bench.txt`, `bench.json` and, where matplotlib is installed and something is measured,
    `bench.png` and `bench.svg`. Raises UsageError where they cannot be written."""
    files = {
        "bench.txt": (to_text(comparison) + "\n").encode(),
        "bench.json": to_json(comparison).encode(),
    }
    remark = why_no_pictures()
    if comparison.rows and remark is None:
        files |= {f"bench.{kind}": content for kind, content in draw(comparison).items()}
    for name, content in files.items():
        write_file(folder / name, content)
    return Written(folder, tuple(files), remark)
