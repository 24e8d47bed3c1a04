"""Submit runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText, LoadedJob
from hpc_amp.config.sites import load_for_site
from hpc_amp.errors import HpcAmpError, UnclearError, UsageError, to_type
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.known import remember
from hpc_amp.jobs.links import submit_chain
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render
from hpc_amp.schedulers import Scheduler, Submission
from hpc_amp.signals import uninterrupted


def prepare(
    config: Path | JobText,
    overrides: Sequence[str],
    *,
    run_id: str | None = None,
    site: str | None = None,
) -> tuple[Plan, LoadedJob]:
    """Read a job file, validate it and make its plan. Writes nothing to disk. `run_id` replaces the
    generated run id, and `site` the job's site. Raises ConfigError or UsageError."""
    if site is not None:
        overrides = [*overrides, f"site={site}"]
    if isinstance(config, JobText) and config.folder is not None:
        with rundir.working_in(str(config.folder), "the run was submitted"):
            return prepare(config._replace(folder=None), overrides, run_id=run_id)
    loaded, chosen = load_for_site(config, overrides)
    check_job(loaded, chosen)
    run_id = rundir.check_run_id(run_id) if run_id else rundir.new_run_id()
    run_dir = Path(loaded.job.runs_dir) / loaded.job.name / run_id
    plan = make_plan(loaded, chosen, run_dir, shares_code=True)
    if isinstance(config, JobText) and config.run_dir is not None:
        from hpc_amp.jobs.again import differences_to  # most jobs are new

        differences = differences_to(config.run_dir, plan, loaded, overrides)
        plan = replace(plan, remarks=(*plan.remarks, *differences))
    return plan, loaded


def submit(
    plan: Plan, config_text: str, tell: Callable[[Submission], object] = lambda submission: None
) -> Submission:
    """Create the run directory and submit the script. `config_text` is the job file as given.
    `tell` is called with the submission.

    Signals, also that of Ctrl-C, are blocked until the job's id is recorded and `tell` has
    returned. If the scheduler refuses, the run directory is removed and SchedulerError is raised.
    If it is unknown whether the scheduler accepted the job, the directory is kept and UnclearError
    is raised. Also raises ConfigError and UsageError.
    """
    script = render(plan)
    rundir.create(plan, script, config_text)
    remember(plan.run_dir.parents[1])
    with waiting_for(plan.scheduler):
        rundir.write_latest(plan.run_dir.parent)
        try:
            submission = submit_script(plan.run_dir, plan.scheduler, plan.job.resources.chain)
        except UnclearError as error:
            raise kept(error, plan.run_dir) from None
        except HpcAmpError:
            rundir.discard(plan.run_dir)
            raise
        tell(submission)
    return submission


def create(plan: Plan, config_text: str) -> str:
    """Create the run directory for a script that the user submits, and return the script.
    `config_text` is the job file as given. Raises ConfigError and UsageError."""
    script = render(plan)
    rundir.create(plan, script, config_text)
    record_event(plan.run_dir, "created", scheduler=plan.scheduler.name)
    rundir.write_latest(plan.run_dir.parent)
    remember(plan.run_dir.parents[1])
    return script


def waiting_for(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Block signals in the block, while a job is submitted. Not if jobs run on this machine: the
    script is then a child process, which has to receive signals and records its start itself."""
    return nullcontext() if scheduler.one_machine else uninterrupted()


def kept(error: UnclearError, run_dir: Path) -> UnclearError:
    """The error for a run that is kept because its job may be in the queue."""
    return UnclearError(
        f"{error.message}; it is unknown whether the job is in the queue, so {run_dir} is kept",
        hint=f"{to_type('status', run_dir)} searches for the job",
    )


def submit_script(run_dir: Path, scheduler: Scheduler, links: int, **facts: Any) -> Submission:
    """Submit the run's script, with `links` more jobs in a chain. The event `submitted`, with
    `facts`, is recorded before, because the script may start and even end before the scheduler's
    command returns. The job id is recorded afterwards in the event `queued`. It is missing if the
    scheduler gave no clear answer."""
    cluster = scheduler.cluster()
    facts |= {"cluster": cluster} if cluster else {}
    record_event(run_dir, "submitted", scheduler=scheduler.name, **facts)
    try:
        submission = submit_chain(scheduler, run_dir, links)
    except UnclearError:
        raise
    except HpcAmpError as error:
        record_event(run_dir, "failed", reason=str(error))
        raise
    try:
        record_event(run_dir, "queued", job_id=submission.job_id)
    except UsageError as error:
        # The job is in the queue all the same, and its script records the id when it starts.
        remarks = f"{submission.remarks}\nWARNING: {error}".strip()
        submission = submission._replace(remarks=remarks)
    return submission
