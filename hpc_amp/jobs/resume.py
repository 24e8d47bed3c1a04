"""Resume runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import HpcAmpError, UnclearError, UsageError
from hpc_amp.jobs import change, rundir
from hpc_amp.jobs.attempts import newest_attempt
from hpc_amp.jobs.change import Changed
from hpc_amp.jobs.control import Leftovers, leftovers
from hpc_amp.jobs.events import is_only_created, read_events, record_event
from hpc_amp.jobs.links import read_chain
from hpc_amp.jobs.status import RunStatus, left_of_moved, run_statuses
from hpc_amp.jobs.submit import kept, submit_script, waiting_for
from hpc_amp.schedulers import Submission, get_scheduler
from hpc_amp.signals import uninterrupted

ENDING_SECONDS = 30.0
"""How long `resume` waits for a job that has ended and is still in the queue: Cobalt shows it for
about 20 s, Slurm while it cleans up."""


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
    on_wait: Callable[[str], object] = lambda job_id: None,
    *,
    here: bool = False,
) -> Resumed:
    """Submit a run again. It continues from its newest checkpoint, with `overrides` applied to its
    settings. `command` is the user's command line, for the run's history. `tell` is called with the
    result before signals are unblocked. `on_wait` is called with the id of a job that is still
    ending, before a wait of up to `ENDING_SECONDS` for it. `here`: if the run was copied or moved,
    it continues in its present folder: its script is rendered for this folder.

    Raises ConfigError if an override is wrong or its key cannot change. Raises UsageError if the
    run is pending or running, was copied or moved, or has finished and has no steps left. Raises
    SchedulerError if the scheduler refuses; the changes of settings are reverted then.
    """
    place = rundir.origin(run_dir, rundir.read_resolved(run_dir))
    here = here and place is not None
    before, stuck = (
        _refuse_elsewhere_under_way(run_dir) if here else _refuse_under_way(run_dir, on_wait)
    )
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
                submission = submit_script(run_dir, scheduler, resources.get("chain", 0))
                resumed = Resumed(submission, scheduler.name)
            else:
                with uninterrupted():
                    number = change.apply(run_dir, planned, command)
                submission = submit_script(
                    run_dir, plan.scheduler, plan.job.resources.chain, change=number, **facts
                )
                resumed = Resumed(submission, plan.scheduler.name, planned.changed, plan.remarks)
        except UnclearError as error:
            raise kept(error, run_dir) from None
        except HpcAmpError as error:
            if number is not None:
                change.take_back(run_dir, number, str(error))
                if before.state == "finished":  # the run is still finished
                    record_event(run_dir, "finished", job_id=before.job_id)
            raise
        tell(resumed)
    return resumed


def _refuse_under_way(
    run_dir: Path, on_wait: Callable[[str], object]
) -> tuple[RunStatus, list[str]]:
    """The status of a run that has ended, and its job if that is in the queue but can never start.
    Waits for a job that is still ending. Raises UsageError if the run has not ended, or may not
    have."""
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
    left = _left_when_ended(status, on_wait)
    own = {job_id: job for job_id, job in left.jobs.items() if job_id == status.job_id}
    if any(not job.stuck for job in own.values()):
        raise UsageError(f"job {status.job_id} of {run_dir} is still ending", hint="try again")
    if left.orphan is not None:
        raise UsageError(f"{run_dir} still runs: {left.orphan}", hint="`cancel` asks it to stop")
    return status, [*own]


def _left_when_ended(status: RunStatus, on_wait: Callable[[str], object]) -> Leftovers:
    """What there still is of a run that has ended. If its job is still ending, waits for that."""
    job_id = status.job_id or ""

    def is_ending() -> bool:
        return job_id in left.jobs and left.jobs[job_id].state == "running"

    (left,) = leftovers([status])
    if is_ending():
        on_wait(job_id)
        deadline = time.monotonic() + ENDING_SECONDS
        while (is_ending() or left.orphan is not None) and time.monotonic() < deadline:
            time.sleep(1)
            (left,) = leftovers([status])
    return left


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
