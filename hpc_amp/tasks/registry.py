"""The built-in tasks, by name."""

from __future__ import annotations

import importlib

import torch

from hpc_amp.config.schema import Train
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Task

# By path, not by class: a job imports the task that it runs and no other.
_TASKS = {
    "classification": ("hpc_amp.tasks.classification", "Classification"),
    "dcgan": ("hpc_amp.tasks.dcgan", "Dcgan"),
}


def build_task(train: Train, world: World, device: torch.device) -> Task:
    """The task that `train.task` names."""
    module, name = _TASKS[train.task]
    task: type[Task] = getattr(importlib.import_module(module), name)
    return task(train, world, device)
