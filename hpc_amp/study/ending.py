"""Ending the runs of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_amp.jobs.events import record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.study.progress import Progress


def cancel_runs(items: Sequence[Progress]) -> int:
    """End all runs that are under way; returns how many those were. They are not waited for: what
    they have measured by then is not a whole measurement. Raises SchedulerError."""
    open_runs = [
        (Path(one.run.status.run_dir), one.run.status)
        for one in items
        if one.is_under_way and one.run.status is not None
    ]
    # The scripts read it when their ranks have ended, and do not go on.
    for run_dir, _ in open_runs:
        record_event(run_dir, "cancelled", reason="by hpc-amp scale cancel")
    # Those that wait first: on this machine their job starts the next one when one ends.
    ordered = sorted((status for _, status in open_runs), key=lambda status: status.attempt)
    for scheduler, job_id in dict.fromkeys((s.scheduler, s.job_id) for s in ordered if s.job_id):
        get_scheduler(scheduler).cancel(job_id)
    return len(open_runs)
