"""A report as JSON and CSV, with times in seconds and shares from 0 to 1."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from hpc_amp.study.analysis import Analysis
from hpc_amp.study.compare import compare, differences
from hpc_amp.study.curve import Curve, ScaledPoint
from hpc_amp.study.points import Shares
from hpc_amp.study.runs import StudyRun

_SCHEMA = 1


def to_plain(analyses: Sequence[Analysis]) -> dict[str, Any]:
    """One study, or two studies and their comparison, as JSON values."""
    plain: dict[str, Any] = {"schema": _SCHEMA, "studies": [_study(one) for one in analyses]}
    if len(analyses) == 2:
        plain["comparison"] = {
            "differences": differences(*analyses),
            "points": [
                {"kind": c.kind, "nodes": c.nodes, "ratio": c.ratio, "half_width": c.half_width}
                for c in compare(*analyses)
            ],
        }
    return plain


def to_json(analyses: Sequence[Analysis]) -> str:
    """`to_plain` as text."""
    return json.dumps(to_plain(analyses), indent=1, allow_nan=False) + "\n"


def to_csv(analyses: Sequence[Analysis]) -> str:
    """CSV with a line for each measured point."""
    rows = [
        {"study": one.study.name, "study_id": one.study.id, "kind": curve.kind, **_flat(scaled)}
        for one in analyses
        for curve in one.curves
        for scaled in curve.points
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _study(analysis: Analysis) -> dict[str, Any]:
    study = analysis.study
    return {
        "name": study.name,
        "id": study.id,
        "folder": str(study.folder),
        "created": study.created,
        "site": study.campaign.site,
        "command": study.command,
        **{key: analysis.facts(key) for key in ("model", "parameters")},
        "versions": {
            name: analysis.facts(f"environment.{name}")
            for name in ("hpc_amp", "torch", "cuda", "python")
        },
        "kinds": list(study.kinds),
        "nodes": list(study.nodes),
        "repeats": study.repeats,
        **{key: analysis.values(key) for key in ("device", "torch", "precision", "data")},
        "curves": [_curve(curve) for curve in analysis.curves],
        "runs": [_run(run) for run in analysis.runs],
        "caveats": [{"topic": one.topic, "text": one.text} for one in analysis.caveats],
    }


def _run(run: StudyRun) -> dict[str, Any]:
    return {
        **asdict(run.planned),
        "run_dir": None if run.run_dir is None else str(run.run_dir),
        "state": run.state,
        "reason": run.reason,
        "ranks": len(run.ranks),
        "damaged": list(run.damaged),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    fit = None
    if curve.fit is not None:
        fit = {**asdict(curve.fit), "verifiable": curve.fit.verifiable}
    return {
        "kind": curve.kind,
        "reference_nodes": curve.reference.nodes,
        "points": [_point(scaled) for scaled in curve.points],
        "fit": fit,
        "crossing": None if curve.crossing is None else asdict(curve.crossing),
    }


def _point(scaled: ScaledPoint) -> dict[str, Any]:
    point = scaled.point
    plain: dict[str, Any] = {
        "nodes": point.nodes,
        "world_size": point.world_size,
        "batch_size": point.batch_size,
        "runs_measured": len(point.runs),
        "runs_planned": point.planned,
        "run_seconds": list(point.run_seconds),
        "step_seconds": point.step_seconds,
        "step_spread": list(point.step_spread),
        "step_half_width": point.half_width,
        "mean_seconds": point.mean_seconds,
        "samples_per_second": point.samples_per_second,
        "speedup": scaled.speedup,
        "ideal_speedup": scaled.ideal_speedup,
        "efficiency": scaled.efficiency,
        "efficiency_half_width": scaled.half_width,
        "shares": dict.fromkeys(_SHARES) if point.is_reported else asdict(point.shares),
        "slowest": None if point.slowest is None else asdict(point.slowest),
        "allreduce": None if point.allreduce is None else asdict(point.allreduce),
    }
    if not point.first.has_batch:
        plain |= dict.fromkeys(_OF_STEPS)
    return plain


_SHARES = tuple(field.name for field in fields(Shares))
_OF_STEPS = ("batch_size", "run_seconds", "step_seconds", "step_spread", "mean_seconds")
"""Values that are not known without the batch."""
_SAME_IN_CSV = (
    "nodes", "world_size", "batch_size", "runs_measured", "runs_planned", "step_seconds",
    "step_half_width", "mean_seconds", "samples_per_second", "speedup", "ideal_speedup",
    "efficiency", "efficiency_half_width",
)  # fmt: skip
_CSV_COLUMNS = (
    "study", "study_id", "kind", *_SAME_IN_CSV, "step_seconds_q1", "step_seconds_q3",
    "compute", "communication", "data_wait", "slowest_rank", "slowest_host", "slowest_excess",
    "allreduce_bytes", "allreduce_seconds", "allreduce_bus_bandwidth",
)  # fmt: skip


def _flat(scaled: ScaledPoint) -> dict[str, Any]:
    point = _point(scaled)
    low, high = point["step_spread"] or (None, None)
    slowest, allreduce = point["slowest"] or {}, point["allreduce"] or {}
    return {
        **{key: point[key] for key in _SAME_IN_CSV},
        "step_seconds_q1": low,
        "step_seconds_q3": high,
        **point["shares"],
        **{f"slowest_{key}": slowest.get(key) for key in ("rank", "host", "excess")},
        **{f"allreduce_{k}": allreduce.get(k) for k in ("bytes", "seconds", "bus_bandwidth")},
    }
