"""Check that the host code of a scheduler and a container runtime defines all functions."""

from __future__ import annotations

import re

from hpc_amp.containers import Container
from hpc_amp.errors import UsageError
from hpc_amp.schedulers import Scheduler

# The functions that hpc_amp/host calls and that have no default there.
_OF_SCHEDULERS = ("scheduler_begins", "job_state", "read_allocation")
_OF_CONTAINERS = ("enter_container",)


def check_host_code(scheduler: Scheduler, container: Container) -> None:
    """Raise UsageError if the host code of a scheduler or a container runtime does not define a
    function that the launch script calls."""
    # If the scheduler chains jobs, hpc_amp/host/links.sh defines go_on.
    of_scheduler = _OF_SCHEDULERS if scheduler.chains else (*_OF_SCHEDULERS, "go_on")
    for thing, text, functions in (
        (f"scheduler {scheduler.name}", scheduler.host_code(), of_scheduler),
        (f"container runtime {container.name}", container.host_code(), _OF_CONTAINERS),
    ):
        for function in functions:
            if not re.search(rf"\b{function}\s*\(\)|\bfunction\s+{function}\b", text):
                raise UsageError(
                    f"the host code of the {thing} does not define the function {function}",
                    hint="return it from `host_code`, or write `host.sh` beside the module",
                )
