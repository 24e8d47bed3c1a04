"""Submit and resume runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText, LoadedJob
from hpc_amp.config.paths import literal
from hpc_amp.config.sites import load_for_site
from hpc_amp.errors import HpcAmpError, UnclearError, UsageError
from hpc_amp.jobs import change, rundir
from hpc_amp.jobs.attempts import newest_attempt
from hpc_amp.jobs.change import Changed
from hpc_amp.jobs.control import leftovers
from hpc_amp.jobs.events import is_only_created, read_events, record_event
from hpc_amp.jobs.git import read_code_state
from hpc_amp.jobs.known import remember
from hpc_amp.jobs.links import read_chain, submit_chain
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.status import RunStatus, left_of_moved, run_statuses
from hpc_amp.schedulers import Scheduler, Submission, get_scheduler
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
            return prepare(replace(config, folder=None), overrides, run_id=run_id)
    loaded, chosen = load_for_site(config, overrides)
    check_job(loaded, chosen)
    run_id = rundir.check_run_id(run_id) if run_id else rundir.new_run_id()
    run_dir = Path(loaded.job.runs_dir) / loaded.job.name / run_id
    plan = make_plan(loaded, chosen, run_dir, shares_code=True)
    if isinstance(config, JobText) and config.run_dir is not None:
        differences = _differences(config.run_dir, plan, loaded, overrides)
        plan = replace(plan, remarks=(*plan.remarks, *differences))
    return plan, loaded


def again(run_dir: Path) -> JobText:
    """The job of a run, to be submitted once more as a new run: the job file and the overrides of
    its submission, and its copy of the code. Raises UsageError if it does not record them."""
    resolved = rundir.read_resolved(run_dir)
    rundir.refuse_without_links(run_dir)
    overrides = change.given_at_submission(run_dir, resolved)
    if resolved["job"].get("code") is not None:
        code = literal(str(run_dir.resolve() / "code")).replace("'", "''")
        overrides = [*overrides, f"code='{code}'"]
    path = run_dir / "config.yaml"
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    folder = Path(rundir.submission_folder(run_dir, resolved))
    return JobText(path, text, tuple(overrides), folder=folder, run_dir=run_dir)


def _differences(
    run_dir: Path, plan: Plan, loaded: LoadedJob, overrides: Sequence[str]
) -> Iterator[str]:
    """What is not as in `run_dir`, whose job runs again, besides what `overrides` change: a site
    file may have changed, or the program itself."""
    changed = change.differences(run_dir, plan, loaded, overrides)
    if changed:
        yield f"not as in {run_dir}: {', '.join(map(str, changed))}"
    if plan.job.run is not None and plan.job.code is None:
        state = read_code_state(run_dir)
        then = f" (it was {state})" if state is not None else ""
        yield (
            f"{run_dir} has no copy of its program, because the key code was not set: the program "
            f"is used as it is now{then}"
        )


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
            submission = _submit_script(plan.run_dir, plan.scheduler, plan.job.resources.chain)
        except UnclearError as error:
            raise _kept(error, plan.run_dir) from None
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


def _kept(error: UnclearError, run_dir: Path) -> UnclearError:
    return UnclearError(
        f"{error.message}; it is unknown whether the job is in the queue, so {run_dir} is kept",
        hint=f"hpc-amp status {run_dir} searches for the job",
    )


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of `resume`."""

    submission: Submission
    scheduler: str
    changed: tuple[Changed, ...] = ()
    """The settings that were changed."""
    remarks: tuple[str, ...] = ()
    """Remarks on the new settings, one line each."""


def resume(
    run_dir: Path,
    overrides: Sequence[str] = (),
    command: str = "hpc-amp resume",
    tell: Callable[[Resumed], object] = lambda resumed: None,
    *,
    here: bool = False,
) -> Resumed:
    """Submit a run again. It continues from its newest checkpoint, with `overrides` applied to its
    settings. `command` is the user's command line, for the run's history. `tell` is called with the
    result before signals are unblocked. `here`: if the run was copied or moved, it continues in its
    present folder: its script is rendered for this folder.

    Raises ConfigError if an override is wrong or its key cannot change. Raises UsageError if the
    run is pending or running, was copied or moved, or has finished and has no steps left. Raises
    SchedulerError if the scheduler refuses; the changes of settings are reverted then.
    """
    place = rundir.origin(run_dir, rundir.read_resolved(run_dir))
    here = here and place is not None
    before, stuck = _refuse_elsewhere_under_way(run_dir) if here else _refuse_under_way(run_dir)
    change.mend(run_dir)
    planned = change.plan_change(run_dir, overrides, here=here) if overrides or here else None
    if planned is not None and planned.keeps_job:
        planned = None  # the settings of the job are already as requested
    if before.state == "finished":
        _refuse_finished(run_dir, planned)
    scheduler = get_scheduler(before.scheduler)
    facts = {}
    if rundir.is_copy(place):
        _forget_original(run_dir)
        facts = {"copied_from": str(place)}
    for link in (*reversed(read_chain(run_dir)), *stuck):
        scheduler.cancel(link)  # it may still wait for a job that failed
    plan = None if planned is None else planned.plan
    number = None
    with waiting_for(scheduler if plan is None else plan.scheduler):
        try:
            if planned is None or plan is None:
                resources = rundir.read_resolved(run_dir)["job"].get("job", {})
                submission = _submit_script(run_dir, scheduler, resources.get("chain", 0))
                resumed = Resumed(submission, scheduler.name)
            else:
                with uninterrupted():
                    number = change.apply(run_dir, planned, command)
                submission = _submit_script(
                    run_dir, plan.scheduler, plan.job.resources.chain, change=number, **facts
                )
                resumed = Resumed(submission, plan.scheduler.name, planned.changed, plan.remarks)
        except UnclearError as error:
            raise _kept(error, run_dir) from None
        except HpcAmpError as error:
            if number is not None:
                change.take_back(run_dir, number, str(error))
                if before.state == "finished":  # the run is still finished
                    record_event(run_dir, "finished", job_id=before.job_id)
            raise
        tell(resumed)
    return resumed


def _refuse_under_way(run_dir: Path) -> tuple[RunStatus, list[str]]:
    """The status of a run that has ended, and its job if that is in the queue but can never start.
    Raises UsageError if the run has not ended, or may not have."""
    rundir.refuse_elsewhere(run_dir)
    (status,) = run_statuses([run_dir])
    if status.state in ("pending", "running"):
        raise UsageError(
            f"{run_dir} is {status.state} as job {status.job_id}", hint="it cannot run twice"
        )
    if is_only_created(run_dir):
        raise UsageError(f"{run_dir}: {status.reason}", hint="submit that script")
    if status.state == "unknown":
        raise UsageError(
            f"it is unknown whether {run_dir} still runs: {status.reason}", hint="try again later"
        )
    if not read_events(run_dir):
        raise UsageError(
            f"{run_dir} is incomplete: its command was ended before it was submitted",
            hint="submit it again",
        )
    left = leftovers(status)
    own = {job_id: job for job_id, job in left.jobs.items() if job_id == status.job_id}
    if any(not job.stuck for job in own.values()):
        raise UsageError(f"job {status.job_id} of {run_dir} is still ending", hint="try again")
    if left.orphan is not None:
        raise UsageError(f"{run_dir} still runs: {left.orphan}", hint="`cancel` asks it to stop")
    return status, [*own]


def _refuse_elsewhere_under_way(run_dir: Path) -> tuple[RunStatus, list[str]]:
    """`_refuse_under_way` for a run that was copied or moved. The job of a copy is that of the
    original, whatever its state. The job of a run that was moved may still run."""
    (status,) = run_statuses([run_dir])
    recorded = rundir.origin(run_dir, rundir.read_resolved(run_dir))
    if rundir.is_copy(recorded):
        return status, []
    left = left_of_moved(status)
    if left is not None:
        raise UsageError(
            f"{run_dir} was moved from {recorded}, and {left}",
            hint="move it back to cancel it, or wait for its end",
        )
    return status, []


def _forget_original(run_dir: Path) -> None:
    """Let a copy of a run be a run of its own: the attempts and jobs of the original do not belong
    to it. Raises UsageError."""
    newest = newest_attempt(run_dir)
    try:
        (run_dir / "chain").unlink(missing_ok=True)
        if newest is not None:
            (newest / "ended").touch()
    except OSError as error:
        raise UsageError(f"{run_dir} cannot be written: {error.strerror}") from None


def _refuse_finished(run_dir: Path, planned: change.Change | None) -> None:
    """Raise UsageError if a run that has finished has no steps left."""
    if planned is None or planned.only_moves:
        raise UsageError(f"{run_dir} has finished", hint="there is nothing to resume")
    total = change.total_steps(run_dir, planned.plan.job.train)
    if total is not None and total <= change.steps_done(run_dir):
        raise UsageError(
            f"{run_dir} has finished, at step {total} of {total}",
            hint="it can continue with more train.epochs or train.max_steps",
        )


def _submit_script(run_dir: Path, scheduler: Scheduler, links: int, **facts: Any) -> Submission:
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
        submission = replace(submission, remarks=remarks)
    return submission
