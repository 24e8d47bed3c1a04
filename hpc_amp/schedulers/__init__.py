"""Who gives out the nodes: Slurm, or nobody (this machine)."""

from __future__ import annotations

from hpc_amp.schedulers.base import JobStatus, Scheduler
from hpc_amp.schedulers.local import Local
from hpc_amp.schedulers.slurm import Slurm

__all__ = ["JobStatus", "Scheduler", "get_scheduler"]

_SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": Slurm, "local": Local}


def get_scheduler(name: str) -> Scheduler:
    """The scheduler of that name."""
    return _SCHEDULERS[name]()
