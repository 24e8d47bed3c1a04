"""Schedulers: classes that describe batch systems, found by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hpc_amp.errors import SchedulerError
from hpc_amp.registry import Registry
from hpc_amp.schedulers.answers import JobStatus, Submission
from hpc_amp.schedulers.base import Scheduler

if TYPE_CHECKING:
    from hpc_amp.schedulers.grammar import Grammar

__all__ = ["SCHEDULERS", "JobStatus", "Scheduler", "Submission", "get_scheduler", "grammars"]

SCHEDULERS: Registry[Scheduler] = Registry(
    "hpc_amp.schedulers",
    "hpc_amp.schedulers.base:Scheduler",
    {
        "slurm": "hpc_amp.schedulers.slurm:Slurm",
        "pbs": "hpc_amp.schedulers.pbs:Pbs",
        "cobalt": "hpc_amp.schedulers.cobalt:Cobalt",
        "gridengine": "hpc_amp.schedulers.gridengine:GridEngine",
        "local": "hpc_amp.schedulers.local:Local",
    },
    attributes=("name", "title", "grace"),
)


def get_scheduler(name: str) -> Scheduler:
    """The scheduler with a name. Raises SchedulerError if the name is unknown."""
    if name not in SCHEDULERS:
        raise SchedulerError(f"there is no scheduler {name!r}")
    return SCHEDULERS.get(name)()


@functools.cache
def grammars() -> tuple[Grammar, ...]:
    """The grammars of all schedulers that have directives, this package's first."""
    return tuple(one.grammar for one in SCHEDULERS if one.grammar is not None)
