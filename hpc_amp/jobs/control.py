"""Ending runs."""

from __future__ import annotations

from pathlib import Path

from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.status import RunStatus, run_statuses
from hpc_amp.schedulers import get_scheduler


def cancel(run_dir: Path) -> RunStatus:
    """End a run that is pending or running, for good: it will not start again by itself. Returns
    its status before. A run that has ended is left as it is."""
    (status,) = run_statuses([run_dir])
    if status.state in ("pending", "running", "unknown") and status.job_id is not None:
        # Recorded before: the script reads it when its ranks have saved, and does not go on.
        record_event(run_dir, "cancelled", reason="by hpc-amp cancel")
        get_scheduler(status.scheduler).cancel(status.job_id)
    return status
