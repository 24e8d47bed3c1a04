"""Who gives out the nodes: Slurm, PBS Pro, Cobalt, or nobody (this machine)."""

from __future__ import annotations

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.base import JobStatus, Scheduler, Submission
from hpc_amp.schedulers.cobalt import Cobalt
from hpc_amp.schedulers.local import Local
from hpc_amp.schedulers.pbs import Pbs
from hpc_amp.schedulers.slurm import Slurm

__all__ = ["JobStatus", "Scheduler", "Submission", "get_scheduler"]

_SCHEDULERS: dict[str, type[Scheduler]] = {
    scheduler.name: scheduler for scheduler in (Slurm, Pbs, Cobalt, Local)
}


def get_scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises SchedulerError for one that has no name here."""
    if name not in _SCHEDULERS:
        raise SchedulerError(f"there is no scheduler {name!r}")
    return _SCHEDULERS[name]()
