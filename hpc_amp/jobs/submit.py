"""From a configuration to a job in the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.sites import load_for_site
from hpc_amp.errors import HpcAmpError, UnclearError, UsageError
from hpc_amp.jobs import change, rundir
from hpc_amp.jobs.attempts import find_orphan
from hpc_amp.jobs.change import Changed
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.jobs.links import read_chain, submit_chain
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.status import RunStatus, run_statuses
from hpc_amp.schedulers import Scheduler, Submission, get_scheduler
from hpc_amp.signals import uninterrupted


def prepare(
    config: Path, overrides: Sequence[str], *, run_id: str | None = None, site: str | None = None
) -> tuple[Plan, LoadedJob]:
    """A validated plan for a configuration. Touches nothing on disk. `site` replaces the job's."""
    if site is not None:
        overrides = [*overrides, f"site={site}"]
    loaded, chosen = load_for_site(config, overrides)
    check_job(loaded, chosen)
    run_id = rundir.check_run_id(run_id) if run_id else rundir.new_run_id()
    run_dir = Path(loaded.job.runs_dir) / loaded.job.name / run_id
    return make_plan(loaded, chosen, run_dir), loaded


def submit(
    plan: Plan, config_text: str, tell: Callable[[Submission], object] = lambda submission: None
) -> Submission:
    """Create the run directory and hand the script to the scheduler. Where that refuses, nothing
    stays behind; where it may have taken the job all the same, the directory stays (UnclearError).

    Ctrl-C and signals wait until the job's id is on record and `tell` has told it.
    """
    script = render(plan)
    rundir.create(plan, script, config_text)
    with waiting_for(plan.scheduler):
        # Before there is a job: whatever ends this command, the run's name finds it.
        before = rundir.point_latest(plan.run_dir)
        try:
            submission = _hand_in(plan.run_dir, plan.scheduler, plan.job.resources.chain)
        except UnclearError as error:
            raise _kept(error, plan.run_dir) from None
        except HpcAmpError:
            rundir.restore_latest(plan.run_dir, before)
            rundir.discard(plan.run_dir)
            raise
        tell(submission)
    return submission


def waiting_for(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Let Ctrl-C and signals wait while the scheduler is handed a job. On this machine the script
    is a child, which has to hear signals, and records itself that it has begun."""
    return nullcontext() if scheduler.one_machine else uninterrupted()


def _kept(error: UnclearError, run_dir: Path) -> UnclearError:
    return UnclearError(
        f"{error.message}; whether the job is in the queue is not known, and {run_dir} stays",
        hint=f"hpc-amp status {run_dir} looks for it",
    )


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that was submitted again."""

    submission: Submission
    scheduler: str
    changed: tuple[Changed, ...] = ()
    """What it goes on with."""
    remarks: tuple[str, ...] = ()
    """What the user should know, although nothing is wrong."""


def resume(
    run_dir: Path,
    overrides: Sequence[str] = (),
    command: str = "hpc-amp resume",
    tell: Callable[[Resumed], object] = lambda resumed: None,
) -> Resumed:
    """Submit the run's script again; the job goes on from its newest checkpoint, with `overrides`
    on top of its settings. `command` is what the user typed, for the run's history. `tell` is told
    of the submission before a Ctrl-C that came meanwhile takes effect.

    Raises ConfigError for overrides that are wrong or cannot change, and UsageError where the run
    is under way, is not the one that it says it is, or has finished and would have nothing to do.
    Where the scheduler refuses, the run's settings are as they were.
    """
    before, stuck = _refuse_under_way(run_dir)
    change.mend(run_dir)
    planned = change.plan_change(run_dir, overrides) if overrides else None
    if planned is not None and planned.only_told:
        planned = None  # all is as it is to be
    if before.state == "finished":
        _refuse_finished(run_dir, planned)
    scheduler = get_scheduler(before.scheduler)
    for link in (*reversed(read_chain(run_dir)), *stuck):
        scheduler.cancel(link)  # may still wait for a job that failed
    plan = None if planned is None else planned.plan
    number = None
    with waiting_for(scheduler if plan is None else plan.scheduler):
        try:
            if planned is None or plan is None:
                resources = rundir.read_resolved(run_dir)["job"].get("job", {})
                submission = _hand_in(run_dir, scheduler, resources.get("chain", 0))
                resumed = Resumed(submission, scheduler.name)
            else:
                with uninterrupted():
                    number = change.apply(run_dir, planned, command)
                submission = _hand_in(
                    run_dir, plan.scheduler, plan.job.resources.chain, change=number
                )
                resumed = Resumed(submission, plan.scheduler.name, planned.changed, plan.remarks)
        except UnclearError as error:
            raise _kept(error, run_dir) from None
        except HpcAmpError as error:
            if number is not None:
                change.take_back(run_dir, number, str(error))
                if before.state == "finished":  # which it still is
                    record_event(run_dir, "finished", job_id=before.job_id)
            raise
        tell(resumed)
    return resumed


def _refuse_under_way(run_dir: Path) -> tuple[RunStatus, list[str]]:
    """The status of a run, and its job where that waits in the queue and can never start. Raises
    UsageError unless the run has ended, for all that is known."""
    rundir.refuse_elsewhere(run_dir)
    (status,) = run_statuses([run_dir])
    if status.state in ("pending", "running"):
        raise UsageError(
            f"{run_dir} is {status.state} as job {status.job_id}", hint="it cannot run twice"
        )
    if status.state == "unknown":
        raise UsageError(
            f"whether {run_dir} still runs is not known: {status.reason}", hint="try again later"
        )
    if not read_events(run_dir):
        raise UsageError(
            f"{run_dir} is incomplete: its command was ended while it wrote it",
            hint="submit it anew",
        )
    scheduler = get_scheduler(status.scheduler)
    there = {} if status.job_id is None else scheduler.unended([status.job_id])
    if any(not job.stuck for job in there.values()):
        raise UsageError(f"job {status.job_id} of {run_dir} is still ending", hint="try again")
    orphan = find_orphan(run_dir, status.scheduler) if status.state == "cancelled" else None
    if orphan is not None:
        raise UsageError(f"{run_dir} is still at work: {orphan}", hint="`cancel` asks it to stop")
    return status, [*there]


def _refuse_finished(run_dir: Path, planned: change.Change | None) -> None:
    """Raises UsageError where a run that has finished would have no step more to do."""
    if planned is None:
        raise UsageError(f"{run_dir} has finished", hint="there is nothing to resume")
    total = change.total_steps(run_dir, planned.plan.job.train)
    if total is not None and total <= change.steps_done(run_dir):
        raise UsageError(
            f"{run_dir} has finished, at step {total} of {total}",
            hint="it can go on with more train.epochs or train.max_steps",
        )


def _hand_in(run_dir: Path, scheduler: Scheduler, links: int, **facts: Any) -> Submission:
    """Submit the run's script. `submitted` is recorded before, since the script may start and even
    end before the scheduler's command has returned; the job id follows in an event of its own, and
    is missing where the scheduler gave no clear answer. `facts` are recorded with it."""
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
        # The job is in the queue all the same, and its script will tell the id when it starts.
        remarks = f"{submission.remarks}\nWARNING: {error}".strip()
        submission = replace(submission, remarks=remarks)
    return submission
