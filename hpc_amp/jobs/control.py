"""Cancel runs, or have them save a checkpoint and stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.attempts import Orphan, find_orphan, newest_attempt
from hpc_amp.jobs.events import FINAL, is_only_created, read_events, record_event
from hpc_amp.jobs.links import read_chain
from hpc_amp.jobs.status import RunStatus, run_statuses
from hpc_amp.jobs.unsettled import ANSWER_SECONDS
from hpc_amp.schedulers import JobStatus, Scheduler, get_scheduler

SAVE_SECONDS = 60
_POLL_SECONDS = 1.0
_UNDER_WAY = ("pending", "running", "unknown")


def cancel(
    run_dir: Path,
    on_wait: Callable[[], object] = lambda: None,
    on_orphan: Callable[[Orphan], object] = lambda orphan: None,
    reason: str = "by hpc-amp cancel",
) -> RunStatus:
    """Cancel a run that is pending or running. It does not start again by itself. Returns the
    run's status before the cancellation. `reason` is recorded, and shown by `status`.

    A run that has ended is not changed, except that jobs of it that can never start are deleted
    from the queue. A run that was cancelled before is cancelled again if its job still exists,
    because the scheduler may have refused the first request.

    If the scheduler does not send signals to the ranks in time, the ranks are first asked through
    the stop file and have 60 s to save. `on_wait` is called before this wait. KeyboardInterrupt
    ends the wait; the job is cancelled then too.

    An attempt that runs although its job has ended (`Orphan`) can only be reached by the stop file.
    It is asked to stop, and `on_orphan` is called with it.

    Raises UsageError if the run belongs elsewhere or its job is not known yet, and SchedulerError
    if the scheduler refuses.
    """
    rundir.refuse_elsewhere(run_dir)
    (status,) = run_statuses([run_dir])
    _refuse_unsettled(status)
    if status.job_id is None:
        return status
    scheduler = get_scheduler(status.scheduler)
    if status.state not in _UNDER_WAY:
        return _cancel_leftovers(run_dir, scheduler, status, status.job_id, on_orphan)
    # Recorded first: the script reads it after its ranks have saved, and does not continue.
    record_event(run_dir, "cancelled", reason=reason)
    _drop_links(scheduler, run_dir, status.job_id)
    if status.orphan is not None:
        ask_to_stop(run_dir)
        on_orphan(status.orphan)
    try:
        if status.state == "running" and not (status.orphan or scheduler.signals_ranks):
            _let_save(scheduler, status, on_wait)
    finally:
        scheduler.cancel(status.job_id)
    return status


def _cancel_leftovers(
    run_dir: Path,
    scheduler: Scheduler,
    status: RunStatus,
    job_id: str,
    on_orphan: Callable[[Orphan], object],
) -> RunStatus:
    """Cancel what is left of a run that has ended: jobs in the queue and an orphan. Returns the
    status of the run that these show."""
    left: dict[str, JobStatus] = {}
    links = read_chain(run_dir)
    if status.state in ("cancelled", "lost") or (links and status.state != "finished"):
        left = scheduler.unended([job_id, *links])
    _drop_links(scheduler, run_dir, job_id)
    present = left.get(job_id)
    if present is not None and (present.stuck or status.state == "cancelled"):
        scheduler.cancel(job_id)
    if any(job.stuck or job.after for job in left.values()):
        if status.state in ("cancelled", "lost"):
            record_event(run_dir, "cancelled", reason="by hpc-amp cancel")
        return replace(status, state="pending")
    if status.state != "cancelled":
        return status
    if present is not None:
        return replace(status, state=present.state)
    orphan = find_orphan(run_dir, status.scheduler)
    if orphan is None:
        return status
    ask_to_stop(run_dir)
    on_orphan(orphan)
    return replace(status, state="running", orphan=orphan)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What there still is of a run that has ended."""

    jobs: dict[str, JobStatus]
    """Its jobs that have not ended for the scheduler, by their ids. They may belong to its chain,
    and some may be stuck."""
    orphan: Orphan | None

    @property
    def is_something(self) -> bool:
        """Whether there is a job or an orphan."""
        return bool(self.jobs) or self.orphan is not None

    def __str__(self) -> str:
        if self.jobs:
            return f"job {next(iter(self.jobs))} is still ending"
        return str(self.orphan or "")


def leftovers(statuses: Sequence[RunStatus]) -> list[Leftovers]:
    """Look for the jobs and the ranks of runs that have ended. Each scheduler is queried once.
    Raises SchedulerError if one does not answer."""
    job_ids = [
        [*([status.job_id] if status.job_id else []), *read_chain(Path(status.run_dir))]
        for status in statuses
    ]
    of_scheduler: dict[str, list[str]] = {}
    for status, own in zip(statuses, job_ids, strict=True):
        of_scheduler.setdefault(status.scheduler, []).extend(own)
    there = {name: get_scheduler(name).unended(ids) for name, ids in of_scheduler.items() if ids}
    return [
        Leftovers(
            {one: there[status.scheduler][one] for one in own if one in there[status.scheduler]},
            find_orphan(Path(status.run_dir), status.scheduler),
        )
        for status, own in zip(statuses, job_ids, strict=True)
    ]


def _refuse_unsettled(status: RunStatus) -> None:
    """Raise UsageError for a run whose job has no known id yet: it cannot be cancelled."""
    if is_only_created(Path(status.run_dir)):
        raise UsageError(
            f"{status.run_dir}: {status.reason}",
            hint="cancel its job with the scheduler's own command; hpc-amp rm removes the run",
        )
    if status.state == "unknown" and status.job_id is None:
        raise UsageError(
            f"{status.run_dir}: {status.reason}, and its job is not known",
            hint=f"try again {ANSWER_SECONDS} s after its submission, when this is settled",
        )


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of `save_and_stop`."""

    before: RunStatus
    how: Literal["saved", "cancelled", "asked", "ended before"]
    """`cancelled`: the run was not running. `asked`: the run is a program of the user's own, which
    may ignore the stop file; its end is not waited for."""
    after: RunStatus


def save_and_stop(run_dir: Path, on_wait: Callable[[RunStatus], object]) -> Stopped:
    """Ask a run to save a checkpoint and stop, and wait for its end. No process is killed. The run
    does not continue by itself, even if it is preempted meanwhile. A pending run is cancelled, and
    a run that has ended is not changed. `on_wait` is called with the run's status before the wait.

    Raises UsageError and SchedulerError as `cancel` does.
    """
    rundir.refuse_elsewhere(run_dir)
    (before,) = run_statuses([run_dir])
    _refuse_unsettled(before)
    if before.state not in _UNDER_WAY:
        return Stopped(before, "ended before", before)
    if before.state == "pending" or before.attempt == 0:
        cancel(run_dir)
        return Stopped(before, "cancelled", before)
    # The event holds for the next attempt too, in case that this one ends at this moment.
    record_event(run_dir, "stopping", reason="by hpc-amp cancel --save")
    ask_to_stop(run_dir)
    if rundir.read_resolved(run_dir)["job"].get("train") is None:
        return Stopped(before, "asked", before)
    on_wait(before)
    return Stopped(before, "saved", _wait_for_end(run_dir, get_scheduler(before.scheduler)))


def _wait_for_end(run_dir: Path, scheduler: Scheduler) -> RunStatus:
    """Wait until a run has ended. The files of the run normally show its end. The scheduler is
    queried at longer intervals, for jobs that disappear without a record."""
    next_ask = time.monotonic() + scheduler.ask_seconds
    while True:
        time.sleep(_POLL_SECONDS)
        if time.monotonic() >= next_ask or read_events(run_dir)[-1]["state"] in FINAL:
            (status,) = run_statuses([run_dir])
            if status.state in FINAL:
                return status
            ask_to_stop(run_dir)
            next_ask = time.monotonic() + scheduler.ask_seconds


def _drop_links(scheduler: Scheduler, run_dir: Path, job_id: str) -> None:
    """Delete the jobs that wait for this one. The last one is deleted first, so that none starts
    meanwhile."""
    for link in reversed(read_chain(run_dir)):
        if link != job_id:
            scheduler.cancel(link)


def ask_to_stop(run_dir: Path) -> None:
    """Create the stop file of the newest attempt: its ranks save and stop. Does nothing before the
    first attempt. Raises UsageError if the file cannot be written."""
    newest = newest_attempt(run_dir)
    if newest is None:
        return
    try:
        (newest / "stop").touch()
    except OSError as error:
        raise UsageError(f"the run cannot be asked to save: {error}") from None


def _let_save(scheduler: Scheduler, status: RunStatus, on_wait: Callable[[], object]) -> None:
    """Ask the ranks of a built-in task to save and stop, and wait for the job to end."""
    run_dir = Path(status.run_dir)
    if rundir.read_resolved(run_dir)["job"].get("train") is None:
        return  # a program of the user's own does not look for the stop file
    ask_to_stop(run_dir)
    on_wait()
    deadline = time.monotonic() + SAVE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        try:
            there = scheduler.unended([status.job_id or ""])
        except SchedulerError:
            continue  # the ranks see the stop file all the same
        if not there:
            return
