"""Schedulers: classes that describe batch systems, found by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpc_amp.errors import SchedulerError
from hpc_amp.registry import Registry
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import JobStatus, Submission
from hpc_amp.schedulers.base import Scheduler

if TYPE_CHECKING:
    from hpc_amp.schedulers.grammar import Grammar

__all__ = [
    "SCHEDULERS",
    "JobStatus",
    "Scheduler",
    "Submission",
    "configured",
    "get_scheduler",
    "grammars",
]

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


# The programs that submit jobs (`Scheduler.command`), so that schedulers need not be imported to
# know that they are not here.
_COMMANDS = {"slurm": "sbatch", "pbs": "qsub", "cobalt": "qsub", "gridengine": "qsub"}


def configured(which: Which = which) -> Iterator[type[Scheduler]]:
    """The schedulers that are configured on this machine (`Scheduler.is_configured`). `which`
    searches a program. Of this package's, only those are imported whose command is found."""
    installed = (name for name, command in _COMMANDS.items() if which(command))
    yield from (one for one in map(SCHEDULERS.get, installed) if one.is_configured(which))
    others = SCHEDULERS.others()  # a search that is not needed if one of the above is wanted
    yield from (one for one in map(SCHEDULERS.get, others) if one.is_configured(which))


def get_scheduler(name: str) -> Scheduler:
    """The scheduler with a name. Raises SchedulerError if the name is unknown."""
    if name not in SCHEDULERS:
        raise SchedulerError(f"there is no scheduler {name!r}")
    return SCHEDULERS.get(name)()


@functools.cache
def grammars() -> tuple[Grammar, ...]:
    """The grammars of all schedulers that have directives, this package's first."""
    return tuple(one.grammar for one in SCHEDULERS if one.grammar is not None)
