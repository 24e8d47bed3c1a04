"""Makes the task of a job: imports the class that `train.task` names."""

from __future__ import annotations

import importlib

import torch

from hpc_amp.config.schema import Train
from hpc_amp.distributed.world import World
from hpc_amp.registry import RegistryError
from hpc_amp.tasks.base import Task
from hpc_amp.tasks.registry import PLACE, TASKS, TaskError, config_class, task_place


def build_task(train: Train, world: World, device: torch.device) -> Task:
    """Make the task that `train.task` names. Raises TaskError if there is no such task, or if
    `train` does not have the keys of the task. Raises KeyProblem if the keys do not fit
    together."""
    wanted = config_class(train.task)
    if not isinstance(train, wanted):
        raise TaskError(
            f"train.task: {train.task} has keys of its own",
            f"make a {wanted.__name__} of {wanted.__module__}, not a {type(train).__name__}",
        )
    return task_class(train.task)(train, world, device)


def task_class(name: str) -> type[Task]:
    """The class of a task, given by its name or import path. Raises TaskError."""
    place = task_place(name)
    if not PLACE.fullmatch(name):
        try:
            found: type[Task] = TASKS.get(name)
        except RegistryError as error:
            raise TaskError(str(error)) from error
        return found
    module, _, task = place.partition(":")
    try:
        made = getattr(importlib.import_module(module), task, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TaskError(f"there is no module {module}") from error
    if made is None:
        raise TaskError(f"{module} has no class {task}")
    if not (isinstance(made, type) and issubclass(made, Task)):
        raise TaskError(
            f"{place} is not a task", "write a class that extends hpc_amp.tasks.base.Task"
        )
    return made
