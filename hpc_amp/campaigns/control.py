"""Ending the runs of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.parts import arrays_of
from hpc_amp.campaigns.record import read_submitted, record_cancelled, record_dropped
from hpc_amp.campaigns.status import UNDER_WAY, PointStatus, point_statuses
from hpc_amp.errors import UsageError, to_type
from hpc_amp.jobs.control import SAVE_SECONDS, ask_to_stop
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.rundir import read_resolved
from hpc_amp.schedulers import get_scheduler

_POLL_SECONDS = 1.0


def cancel(campaign: Campaign, on_wait: Callable[[], object]) -> list[PointStatus]:
    """End all points that are pending or running, and return their statuses before that.

    Runs save a checkpoint first, in the grace time of the scheduler. If signals do not reach the
    ranks, a stop file asks them to save, and they have 60 s. `on_wait` is called before this wait,
    and KeyboardInterrupt ends it. Runs that are never resumed are not waited for. Raises
    SchedulerError if the scheduler does not answer or refuses.
    """
    scheduler = get_scheduler(campaign.scheduler)
    arrays = arrays_of(campaign)
    reason = f"by hpc-amp {campaign.view} cancel"
    statuses = point_statuses(campaign)
    before = [s for s in statuses if s.state in UNDER_WAY] + left_in_queue(campaign, statuses)
    if not before:
        return []
    # A point that waits for its next run still has the directory of the previous run.
    started = [
        status
        for status in before
        if status.run is not None and (campaign.resumes or status.run.job_id == status.job_id)
    ]
    runs = [status.run for status in started if status.run is not None]
    # Recorded first: the scripts read it after their ranks have saved, and then do not continue.
    record_cancelled(campaign, reason)
    for run in runs:
        record_event(Path(run.run_dir), "cancelled", reason=reason)
        if run.orphan is not None:
            ask_to_stop(Path(run.run_dir))
    open_points = {status.index for status in before}
    # Older submissions too: their jobs may be left from a `cancel` that failed.
    submitted = [
        one
        for one in read_submitted(campaign)
        if one.job_ids and not open_points.isdisjoint(one.points)
    ]
    try:
        if campaign.resumes and not scheduler.signals_ranks:
            _let_save([status for status in started if status.state == "running"], on_wait)
    finally:
        for one in submitted:
            arrays.cancel(one.job_ids)
        # Runs that continued in a job of their own, or that `hpc-amp resume` submitted.
        tasks = {
            arrays.task_id(one.job_ids, task, len(one.points))
            for one in submitted
            for task in range(len(one.points))
        }
        for status in started:
            if status.job_id is not None and status.job_id not in tasks:
                scheduler.cancel(status.job_id)
        _record_late_starts(campaign, [s.index for s in before if s.run is None], reason)
    return before


def _record_late_starts(campaign: Campaign, points: Sequence[int], reason: str) -> None:
    """Record the cancellation in those runs of `points` that have started since the states of all
    points were read."""
    from hpc_amp.jobs.status import RunView

    names = campaign.run_names()
    for index in points:
        if index in names:
            run_dir = campaign.folder / "points" / names[index]
            if (run_dir / "state.jsonl").exists() and not RunView(run_dir).ended:
                record_event(run_dir, "cancelled", reason=reason)


def drop(campaign: Campaign, statuses: Sequence[PointStatus], points: Sequence[int]) -> None:
    """Leave points out of a campaign. Jobs of theirs that wait in the queue are ended. Raises
    UsageError if a point does not exist, runs, or waits in a job that makes other points too, and
    SchedulerError if the scheduler does not answer."""
    by_index = {status.index: status for status in statuses}
    waiting = []
    for point in points:
        if point not in by_index:
            raise UsageError(
                f"there is no point {point}", hint=f"they are 0 to {len(campaign.points) - 1}"
            )
        status = by_index[point]
        single = campaign.submitting == "jobs" and status.job_id is not None
        if status.state == "pending" and single:
            waiting.append(status)
        elif status.state in UNDER_WAY:
            raise UsageError(
                f"point {point} is {status.state}",
                hint=f"wait, or end all: {to_type(campaign.view, 'cancel', campaign.folder)}",
            )
    record_dropped(campaign, points, f"by hpc-amp {campaign.view} drop")
    scheduler = get_scheduler(campaign.scheduler)
    for status in waiting:
        scheduler.cancel(str(status.job_id))


def left_in_queue(campaign: Campaign, statuses: Sequence[PointStatus]) -> list[PointStatus]:
    """The cancelled points whose jobs are still in the queue: the scheduler may have refused to end
    them, or their ranks are saving. Raises SchedulerError if the scheduler does not answer."""
    cancelled = [s for s in statuses if s.state == "cancelled" and s.job_id is not None]
    if not cancelled:
        return []
    array_ids = sorted({job_id for one in read_submitted(campaign) for job_id in one.job_ids})
    answers = arrays_of(campaign).query(
        array_ids, sorted({str(s.job_id) for s in cancelled} - {*array_ids})
    )
    return [s for s in cancelled if (a := answers.get(str(s.job_id))) and a.state != "ended"]


def _let_save(running: Sequence[PointStatus], on_wait: Callable[[], object]) -> None:
    """Ask the ranks of all points to save and stop, and wait until they have."""
    runs = [status.run for status in running if status.run is not None]
    # A program of the user does not read the stop file.
    asked = [r for r in runs if read_resolved(Path(r.run_dir))["job"].get("train") is not None]
    for run in asked:
        try:
            (Path(run.run_dir) / "attempts" / str(run.attempt) / "stop").touch()
        except OSError as error:
            raise UsageError(f"{run.run_dir} cannot be asked to save: {error}") from None
    if not asked:
        return
    on_wait()
    deadline = time.monotonic() + SAVE_SECONDS
    while time.monotonic() < deadline and any(
        not (Path(run.run_dir) / "attempts" / str(run.attempt) / "ended").exists() for run in asked
    ):
        time.sleep(_POLL_SECONDS)
