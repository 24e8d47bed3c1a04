"""Scaling studies on disk, as submitting and running them leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STUDY_ID = "20261127-223455-kqzf"


def make_study(
    parent: Path,
    *,
    name: str = "cifar",
    study_id: str = STUDY_ID,
    kind: str = "strong",
    nodes: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 3,
) -> Path:
    """`studies/<name>/<id>` below `parent`, with nothing submitted yet."""
    folder = parent / "studies" / name / study_id
    folder.mkdir(parents=True)
    plan = {"name": name, "kind": kind, "nodes": list(nodes), "repeats": repeats}
    (folder / "study.json").write_text(json.dumps({**plan, "created": "2026-11-27 22:34:55 UTC"}))
    return folder


def submit_run(study: Path, kind: str, nodes: int, repeat: int, *, state: str = "finished") -> Path:
    """The run directory of a point whose run got as far as `state`, without measurements."""
    point = f"{kind}-n{nodes:04d}-r{repeat:02d}"
    run_dir = study.parents[2] / "runs" / study.parent.name / study.name / point
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text(json.dumps({"scheduler": "local", "job": {"name": "test"}}))
    event = {"time": 1, "state": state, "reason": "out of memory" if state == "failed" else ""}
    (run_dir / "state.jsonl").write_text(json.dumps(event) + "\n")
    (study / "points" / point).mkdir(parents=True)
    (study / "points" / point / "run").write_text(f"{run_dir}\n")
    return run_dir


def rank_file(
    rank: int, nodes: int, steps: Sequence[float], *, gpus_per_node: int = 4, **changes: Any
) -> dict[str, Any]:
    """What a rank writes: 2 % of a step waits for data and 8 % for communication; `changes`
    replaces keys."""
    return {
        "rank": rank,
        "world_size": nodes * gpus_per_node,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "host": f"n{rank // gpus_per_node + 1}",
        "device": "NVIDIA A100-SXM4-40GB",
        "torch": "2.6.0",
        "precision": "fp16",
        "data": "synthetic",
        "batch_size": 512,
        "gradient_bytes": 44_700_000,
        "warmup_steps": 20,
        "steps": list(steps),
        "data_wait": [0.02 * step for step in steps],
        "communication": [0.08 * step for step in steps],
        **changes,
    }


def write_timing(run_dir: Path, ranks: Sequence[dict[str, Any]], *, attempt: int = 1) -> Path:
    """The files of ranks in an attempt's folder, which is returned."""
    timing = run_dir / "attempts" / str(attempt) / "timing"
    timing.mkdir(parents=True)
    for rank in ranks:
        (timing / f"rank-{rank['rank']:05d}.json").write_text(json.dumps(rank))
    return timing


def measure(
    study: Path,
    kind: str,
    nodes: int,
    repeat: int,
    seconds: float | Callable[[int], Sequence[float]],
    **changes: Any,
) -> Path:
    """A finished run of a point in which every step takes `seconds`, or what this gives for a rank.
    Weak scaling keeps 128 samples a node. Returns the folder of its timing."""
    run_dir = submit_run(study, kind, nodes, repeat)
    batch = {"batch_size": 128 * nodes} if kind == "weak" else {}
    gpus = changes.get("gpus_per_node", 4)
    ranks = []
    for rank in range(nodes * gpus):
        steps = seconds(rank) if callable(seconds) else [seconds] * 30
        ranks.append(rank_file(rank, nodes, steps, **{**batch, **changes}))
    return write_timing(run_dir, ranks)
