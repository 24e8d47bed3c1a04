"""Launchers: classes that start the ranks on the nodes of a job, found by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.launchers.base import Launcher
from hpc_amp.registry import Registry

if TYPE_CHECKING:
    from hpc_amp.schedulers.base import Scheduler

__all__ = ["LAUNCHERS", "Launcher", "get_launcher"]

LAUNCHERS: Registry[Launcher] = Registry(
    "hpc_amp.launchers",
    "hpc_amp.launchers.base:Launcher",
    {
        "srun": "hpc_amp.launchers.srun:Srun",
        "mpirun": "hpc_amp.launchers.mpi:Mpirun",
        "mpiexec": "hpc_amp.launchers.mpi:Mpiexec",
        "torchrun": "hpc_amp.launchers.torchrun:Torchrun",
        "processes": "hpc_amp.launchers.processes:Processes",
        "single": "hpc_amp.launchers.single:Single",
    },
    attributes=("name",),
)


def launchers_of(scheduler: Scheduler) -> list[str]:
    """The names of the launchers that work under a scheduler."""
    return [name for name in LAUNCHERS.names() if scheduler.works_with(get_launcher(name))]


def get_launcher(name: str) -> Launcher:
    """The launcher with a name. Raises KeyError if the name is unknown."""
    return LAUNCHERS.get(name)()
