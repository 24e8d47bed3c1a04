"""Whether the host code of the parts of a job is whole."""

from __future__ import annotations

import re

from hpc_amp.containers import Container
from hpc_amp.errors import UsageError
from hpc_amp.schedulers import Scheduler

# The functions without a default that hpc_amp/host calls.
_OF_SCHEDULERS = ("scheduler_begins", "job_state", "read_allocation")
_OF_CONTAINERS = ("enter_container",)


def check_host_code(scheduler: Scheduler, container: Container) -> None:
    """Raise UsageError where host code lacks a function: the script would end before it can say in
    which way."""
    # Jobs that follow one another go on by hpc_amp/host/links.sh.
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
