"""Ending sweeps, and going on with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_amp.campaigns.words import under_way
from hpc_amp.errors import UsageError
from hpc_amp.jobs.control import SAVE_SECONDS, ask_to_stop
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.rundir import read_resolved
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.arrays import Arrays
from hpc_amp.sweep.folder import Sweep
from hpc_amp.sweep.record import read_submitted, record_cancelled
from hpc_amp.sweep.status import UNDER_WAY, PointStatus, point_statuses

_POLL_SECONDS = 1.0
_REASON = "by hpc-amp sweep cancel"


def unfinished(statuses: Sequence[PointStatus]) -> list[int]:
    """The points that `continue` submits again: those that have not finished and are not under
    way."""
    return [s.index for s in statuses if s.state != "finished" and s.state not in UNDER_WAY]


def nothing_to_continue(statuses: Sequence[PointStatus]) -> str:
    """Why there is no such point, for people."""
    number = sum(status.state in UNDER_WAY for status in statuses)
    if not number:
        return "all points have finished"
    return f"{under_way(number, 'point')}; there is nothing to continue"


def cancel(sweep: Sweep, on_wait: Callable[[], object]) -> list[PointStatus]:
    """End all points that are pending or running; returns their statuses before. They save first,
    as far as the scheduler's grace allows; where signals do not reach the ranks, through the stop
    file, for which they have 60 s (`on_wait` is told; an interrupt ends the wait)."""
    scheduler = get_scheduler(sweep.scheduler)
    arrays = scheduler.arrays()
    statuses = point_statuses(sweep)
    before = [s for s in statuses if s.state in UNDER_WAY] + _left_in_queue(sweep, arrays, statuses)
    if not before:
        return []
    started = [status for status in before if status.run is not None]
    # Recorded before: the scripts read it when their ranks have saved, and do not go on.
    record_cancelled(sweep, _REASON)
    for status in started:
        record_event(sweep.point_dir(status.index), "cancelled", reason=_REASON)
        if status.run is not None and status.run.orphan is not None:
            ask_to_stop(sweep.point_dir(status.index))
    open_points = {status.index for status in before}
    submitted = [one for one in read_submitted(sweep) if open_points & set(one.points)]
    try:
        if not scheduler.signals_ranks:
            _let_save(sweep, [status for status in started if status.state == "running"], on_wait)
    finally:
        for one in submitted:
            arrays.cancel(one.job_ids)
        # Runs that went on in jobs of their own, or were resumed by themselves.
        tasks = {
            arrays.task_id(one.job_ids, task, len(one.points))
            for one in submitted
            for task in range(len(one.points))
        }
        for status in started:
            if status.job_id is not None and status.job_id not in tasks:
                scheduler.cancel(status.job_id)
    return before


def _left_in_queue(
    sweep: Sweep, arrays: Arrays, statuses: Sequence[PointStatus]
) -> list[PointStatus]:
    """The points that are cancelled, and whose jobs are there still: the scheduler may have refused
    to end them."""
    cancelled = [s for s in statuses if s.state == "cancelled" and s.job_id is not None]
    if not cancelled:
        return []
    array_ids = sorted({job_id for one in read_submitted(sweep) for job_id in one.job_ids})
    answers = arrays.query(array_ids, sorted({str(s.job_id) for s in cancelled} - {*array_ids}))
    return [s for s in cancelled if (a := answers.get(str(s.job_id))) and a.state != "ended"]


def _let_save(sweep: Sweep, running: Sequence[PointStatus], on_wait: Callable[[], object]) -> None:
    """Ask the ranks of all points to save and stop, and wait for that."""
    runs = [status.run for status in running if status.run is not None]
    # A program of the user's own knows no stop file.
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
