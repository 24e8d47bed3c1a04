"""Checks of the bash code that is added to a launch script: the `setup` lines of the job and the
site, and the host code of the scheduler and the container runtime."""

from __future__ import annotations

import re
import subprocess

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.site import Site
from hpc_amp.containers import Container
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.schedulers import Scheduler

# The functions that hpc_amp/host calls and that have no default there.
_OF_SCHEDULERS = ("scheduler_begins", "job_state", "read_allocation")
_OF_CONTAINERS = ("enter_container",)
_FUNCTION = r"\bfunction\s+(\w+)|\b(\w+)\s*\(\)"
"""A definition of a function in one of bash's two forms."""


def check_host_code(scheduler: Scheduler, container: Container) -> None:
    """Raise UsageError if the host code of a scheduler or a container runtime does not define a
    function that the launch script calls."""
    # If the scheduler chains jobs, hpc_amp/host/links.sh defines go_on.
    of_scheduler = _OF_SCHEDULERS if scheduler.chains else (*_OF_SCHEDULERS, "go_on")
    for thing, text, functions in (
        (f"scheduler {scheduler.name}", scheduler.host_code(), of_scheduler),
        (f"container runtime {container.name}", container.host_code(), _OF_CONTAINERS),
    ):
        defined = {plain or named for named, plain in re.findall(_FUNCTION, text)}
        for function in functions:
            if function not in defined:
                raise UsageError(
                    f"the host code of the {thing} does not define the function {function}",
                    hint="return it from `host_code`, or write `host.sh` beside the module",
                )


def check_setup(loaded: LoadedJob, site: Site) -> None:
    """Raise ConfigError if bash cannot parse the `setup` lines, or if they would continue into the
    next line of the script: an open quote, a here-document without end, a backslash at the end."""
    for key, lines, where in (
        (f"setup of the site {site.name}", site.setup, None),
        ("job.setup", loaded.job.resources.setup, loaded.where("job.setup")),
    ):
        problem = _syntax_error(lines) if lines.strip() else None
        if problem is not None:
            raise ConfigError(
                f"{key}: {problem}",
                where=where,
                hint="the lines become part of the launch script, and have to be complete",
            )


def _syntax_error(lines: str) -> str | None:
    """The error that bash reports when it parses the lines without running them; None if it
    reports none."""
    ending = lines.rstrip("\n")
    if (len(ending) - len(ending.rstrip("\\"))) % 2:
        return "its last line ends with a backslash"
    # Extended patterns are accepted, because the lines may enable them.
    checked = subprocess.run(
        ["bash", "--norc", "-O", "extglob", "-n"],
        input=lines + "\n",
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
    )
    errors = checked.stderr.strip().splitlines()
    return re.sub(r"^bash: ", "", errors[0]) if errors else None
