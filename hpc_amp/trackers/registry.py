"""Trackers by name. Does not import torch, because the submit side checks the names."""

from __future__ import annotations

import importlib.util
from typing import Any

from hpc_amp.registry import Registry

TRACKERS: Registry[Any] = Registry(
    "hpc_amp.trackers",
    "hpc_amp.trackers.base:Tracker",
    {
        "tensorboard": "hpc_amp.trackers.tensorboard:TensorBoard",
        "wandb": "hpc_amp.trackers.wandb:Wandb",
        "mlflow": "hpc_amp.trackers.mlflow:Mlflow",
    },
)

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}
"""What to install for a tracker of this package. It is imported by the tracker's own name."""

EXPORTS = ("wandb", "mlflow")
"""The trackers that `hpc-amp export` can send a run to. They send each point once."""


def missing(name: str) -> str | None:
    """Why a tracker cannot be used here, as far as that can be seen without importing it: a text
    for the user, or None."""
    if name not in PACKAGES:
        return None
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # None is also the origin of an empty folder
        return f"there is no package {name} here; to install it: pip install {PACKAGES[name]}"
    return None
