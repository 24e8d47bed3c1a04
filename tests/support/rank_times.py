"""What a rank writes down of its times. Needs nothing, so that programs of tests start fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
