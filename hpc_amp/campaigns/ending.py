"""Ending the runs of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_amp.jobs.control import ask_to_stop
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.status import RunStatus
from hpc_amp.schedulers import get_scheduler


def is_under_way(status: RunStatus) -> bool:
    """Whether a run may still come to an end by itself, as far as is known. Without a job it
    cannot, once `unsettled.settle` has looked for one."""
    if status.state == "unknown":
        return status.job_id is not None
    return status.state in ("pending", "running")


def cancel_runs(statuses: Sequence[RunStatus], *, by: str) -> int:
    """End all runs that are under way, and those that the scheduler did not end when they were
    cancelled; returns how many they were. They are not waited for: what they have measured by then
    is not a whole measurement. `by` is the command that asks for it. Raises SchedulerError."""
    open_runs = [status for status in statuses if is_under_way(status)]
    left = _left_in_queue(statuses)
    # The scripts read it when their ranks have ended, and do not go on.
    for status in open_runs:
        record_event(Path(status.run_dir), "cancelled", reason=f"by {by}")
        if status.orphan is not None:
            ask_to_stop(Path(status.run_dir))
    # Those that wait first: on this machine their job starts the next one when one ends.
    ordered = sorted([*open_runs, *left], key=lambda status: status.attempt)
    for scheduler, job_id in dict.fromkeys((s.scheduler, s.job_id) for s in ordered if s.job_id):
        get_scheduler(scheduler).cancel(job_id)
    return len(ordered)


def _left_in_queue(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """The runs that are cancelled, and whose jobs are there still."""
    cancelled = [status for status in runs if status.state == "cancelled" and status.job_id]
    left: list[RunStatus] = []
    for name in dict.fromkeys(status.scheduler for status in cancelled):
        own = [status for status in cancelled if status.scheduler == name]
        there = get_scheduler(name).unended(sorted({str(status.job_id) for status in own}))
        left += [status for status in own if status.job_id in there]
    return left
