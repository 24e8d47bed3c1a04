"""The report of a benchmark: text, JSON and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpc_amp.bench.comparison import Comparison, SettingResult, column_names
from hpc_amp.bench.picture import draw
from hpc_amp.bench.sentences import conditions, is_of_cpu, missing, warnings
from hpc_amp.campaigns.output import Written, why_no_pictures, write_file
from hpc_amp.campaigns.overview import cells, facts
from hpc_amp.campaigns.reported import HOW, SILENT
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.campaigns.words import NOT_KNOWN, mebibytes, milliseconds, significant
from hpc_amp.files import finite

_COLUMNS = ("runs", "step ms", "middle half", "samples/s", "speedup", "memory MiB")


def to_text(comparison: Comparison) -> str:
    """The report as text for a terminal."""
    campaign = comparison.campaign
    parts = ["\n".join([f"{campaign.name}  {campaign.id}", *conditions(comparison)])]
    if comparison.rows:
        rows = tuple(_cells(comparison, row) for row in comparison.rows)
        names = column_names(campaign.keys)
        columns = (*names, *_COLUMNS, *comparison.metrics, "skipped")
        table = Table(columns, rows, words=frozenset(names))
        parts.append("\n".join(as_text(table)))
    silent = any(status.reason == SILENT for status in comparison.missing)
    for title, lines in (
        ("not measured", [*missing(comparison), *(HOW.splitlines() if silent else [])]),
        ("warnings", list(warnings(comparison))),
    ):
        if lines:
            parts.append("\n".join([title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def _cells(comparison: Comparison, row: SettingResult) -> tuple[str, ...]:
    low, high = row.step_spread
    return (
        *cells(row.setting),
        f"{len(row.runs)}/{comparison.campaign.repeats}",
        *(
            (milliseconds(row.step_seconds), f"{milliseconds(low)}-{milliseconds(high)}")
            if row.runs[0].ranks[0].has_batch
            else (NOT_KNOWN, NOT_KNOWN)
        ),
        significant(row.samples_per_second),
        NOT_KNOWN if row.speedup is None else f"{row.speedup:.2f}",
        NOT_KNOWN if row.peak_memory is None else mebibytes(row.peak_memory),
        *(
            f"{row.metrics[name]:.4f}" if name in row.metrics else NOT_KNOWN
            for name in comparison.metrics
        ),
        NOT_KNOWN if row.skipped_steps is None else str(row.skipped_steps),
    )


def to_json(comparison: Comparison) -> str:
    """The report as JSON, with times in seconds, sizes in bytes and shares from 0 to 1."""
    campaign, first = comparison.campaign, comparison.first
    measured = first.facts if first is not None else {}
    kept = (
        *("batch_size", "world_size", "nodes", "gpus_per_node", "data", "gradient_bytes"),
        *("task", "model", "device", "device_type", "channels_last", "environment"),
    )
    content = {
        **facts(campaign),
        "created": campaign.created,
        "warmup_steps": comparison.warmup,
        "steps": comparison.steps,
        "repeats": campaign.repeats,
        "conditions": {key: measured.get(key) for key in kept},
        "hosts": comparison.values("host"),
        "speed_says_nothing_for_gpus": is_of_cpu(comparison),
        "settings": [_row(comparison, row) for row in comparison.rows],
        "not_measured": [
            {"setting": comparison.label(status.point), **status.to_plain(campaign.keys)}
            for status in comparison.missing
        ],
        "warnings": list(warnings(comparison)),
    }
    return json.dumps(finite(content), indent=1, allow_nan=False) + "\n"


def _row(comparison: Comparison, row: SettingResult) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "setting": row.label,
        "values": dict(zip(comparison.campaign.keys, row.setting.values, strict=True)),
        "tf32": row.runs[0].facts.get("tf32"),
        "step_seconds": row.step_seconds,
        "step_quartiles": row.step_spread,
        "fastest_and_slowest_run": row.run_spread,
        "samples_per_second": row.samples_per_second,
        "speedup": row.speedup,
        "speedup_of_rounds": row.speedup_spread,
        "peak_memory_bytes": row.peak_memory,
        "data_wait": None if comparison.is_reported else row.data_wait,
        "communication": row.communication,
        "metrics": row.metrics,
        "skipped_steps": row.skipped_steps,
        "runs": [
            {
                "repeat": run.repeat,
                "step_seconds": run.step_seconds,
                "peak_memory_bytes": run.peak_memory,
                "metrics": run.metrics,
                "skipped_steps": run.summary.get("skipped_steps"),
                "run_dir": str(run.run_dir),
            }
            for run in row.runs
        ],
    }
    if not row.runs[0].ranks[0].has_batch:  # steps are not known
        plain |= dict.fromkeys(("step_seconds", "step_quartiles", "fastest_and_slowest_run"))
        plain["runs"] = [{**run, "step_seconds": None} for run in plain["runs"]]
    return plain


def write_report(comparison: Comparison, folder: Path) -> Written:
    """Write `bench.txt` and `bench.json` into `folder`, which is created. If matplotlib is
    installed and a run is measured, also write `bench.png`, `bench.svg` and `bench.pdf`. Raises
    UsageError if a file cannot be written."""
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
