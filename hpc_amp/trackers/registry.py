"""Trackers by name. Never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.registry import Registry

if TYPE_CHECKING:
    from hpc_amp.trackers.base import Tracker

TRACKERS: Registry[Tracker] = Registry(
    "hpc_amp.trackers",
    "hpc_amp.trackers.base:Tracker",
    {"tensorboard": "hpc_amp.trackers.tensorboard:TensorBoard"},
)
