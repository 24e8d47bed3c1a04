"""Ending the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_amp.jobs.control import ask_to_stop
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.status import RunStatus
from hpc_amp.schedulers import get_scheduler
from hpc_amp.study.progress import Progress


def cancel_runs(items: Sequence[Progress]) -> int:
    """End all runs that are under way, and those that the scheduler did not end when they were
    cancelled; returns how many they were. They are not waited for: what they have measured by then
    is not a whole measurement. Raises SchedulerError."""
    open_runs = [one.run.status for one in items if one.is_under_way and one.run.status is not None]
    left = _left_in_queue(items)
    # The scripts read it when their ranks have ended, and do not go on.
    for status in open_runs:
        record_event(Path(status.run_dir), "cancelled", reason="by hpc-amp scale cancel")
        if status.orphan is not None:
            ask_to_stop(Path(status.run_dir))
    # Those that wait first: on this machine their job starts the next one when one ends.
    ordered = sorted([*open_runs, *left], key=lambda status: status.attempt)
    for scheduler, job_id in dict.fromkeys((s.scheduler, s.job_id) for s in ordered if s.job_id):
        get_scheduler(scheduler).cancel(job_id)
    return len(ordered)


def _left_in_queue(items: Sequence[Progress]) -> list[RunStatus]:
    """The runs that are cancelled, and whose jobs are there still."""
    runs = [one.run.status for one in items if one.run.status is not None]
    cancelled = [status for status in runs if status.state == "cancelled" and status.job_id]
    left: list[RunStatus] = []
    for name in dict.fromkeys(status.scheduler for status in cancelled):
        own = [status for status in cancelled if status.scheduler == name]
        there = get_scheduler(name).unended(sorted({str(status.job_id) for status in own}))
        left += [status for status in own if status.job_id in there]
    return left
