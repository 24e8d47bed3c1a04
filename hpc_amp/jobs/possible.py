"""Refuse a job that cannot run, before it is submitted. These are the checks of `doctor` that take
less than a second. They ask the scheduler's own commands, and start an image when it is new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.errors import ConfigError
from hpc_amp.finding import Finding, Severity
from hpc_amp.jobs.plan import Plan
from hpc_amp.schedulers.base import Client

ANSWER_SECONDS = 2.0
"""How long a submission waits for the answers of the scheduler about its limits. It continues
without them."""


_OTHER_FOLDER = ("--pwd", "--cwd", "--workdir", "-w")
"""Options of container runtimes that choose the folder in which relative paths start."""


def check_program(job: Job, site: Site, folder: Path) -> Iterator[Finding]:
    """Yield a finding if the file that `run` starts does not exist. `folder` is the one in which
    relative paths start. An absolute path is not checked, because it may exist only in the image or
    on the nodes."""
    if job.run is None:
        return
    from hpc_amp.config.command import program_in  # only for own programs

    program = program_in(job.run)
    options = {word.partition("=")[0] for word in (*site.container_args, *job.container.args)}
    if program is None or os.path.isabs(program) or not options.isdisjoint(_OTHER_FOLDER):
        return
    start = folder / job.code if job.code is not None else folder
    if os.path.lexists(start / program):
        yield Finding("program", "good", f"{program} is in {start}")
        return
    what = f"run: {program} does not exist in {start}"
    fix = "check the path, which starts in the working directory, or in `code` if that is given"
    made = site.setup.strip() or job.resources.setup.strip()  # may make the file, or change folder
    severity: Severity = "warning" if made else "error"
    yield Finding("program", severity, what, "every rank starts it", fix)


def check_names(job: Job) -> Iterator[Finding]:
    """Yield an error for each name in the training, such as that of a network, that this version
    does not know."""
    for problem in job.train.unknown_names() if job.train is not None else ():
        what = f"train.{problem.key}: {problem.problem}"
        why = "the job would fail when it builds the network, unless its image knows the name"
        yield Finding("config", "error", what, why, problem.hint or "")


def refuse_impossible(plan: Plan, client: Client) -> list[str]:
    """Raise ConfigError if a job can never run: the scheduler's limits do not allow it, its program
    does not exist, a name is not known, or its image has no suitable Python. Returns the warnings,
    one line each."""
    warnings = []
    for finding in _checks(plan, client):
        if finding.severity == "error":
            raise ConfigError(
                finding.what, hint=f"{finding.fix} (--no-check submits the job all the same)"
            )
        if finding.severity == "warning":
            warnings.append(f"{finding.what}: {finding.why}")
    return warnings


def _checks(plan: Plan, client: Client) -> Iterator[Finding]:
    """The findings of all checks. The image is last, because it may have to be started."""
    yield from check_names(plan.job)
    yield from plan.scheduler.check_limits(plan.job, plan.site, client)
    yield from check_program(plan.job, plan.site, plan.submitted_from)
    if plan.container.uses_image:
        from hpc_amp.jobs.image_check import check_image  # most of its imports are for this alone

        yield from check_image(plan, client)
