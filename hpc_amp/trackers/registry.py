"""Trackers by name. Does not import torch, because the submit side checks the names."""

from __future__ import annotations

from typing import Any

from hpc_amp.registry import Registry

TRACKERS: Registry[Any] = Registry(
    "hpc_amp.trackers",
    "hpc_amp.trackers.base:Tracker",
    {"tensorboard": "hpc_amp.trackers.tensorboard:TensorBoard"},
)
