"""Ending runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.links import read_chain
from hpc_amp.jobs.status import RunStatus, run_statuses
from hpc_amp.schedulers import Scheduler, get_scheduler

SAVE_SECONDS = 60
_POLL_SECONDS = 1.0


def cancel(run_dir: Path, on_wait: Callable[[], object] = lambda: None) -> RunStatus:
    """End a run that is pending or running, for good: it will not start again by itself. Returns
    its status before. A run that has ended is left as it is.

    Where signals do not reach the ranks in time, they are asked through the stop file first and
    have 60 s to save (`on_wait` is told); an interrupt ends the wait, and then the job.
    """
    (status,) = run_statuses([run_dir])
    scheduler = None if status.job_id is None else get_scheduler(status.scheduler)
    if scheduler is not None and status.job_id is not None:
        if status.state in ("pending", "running", "unknown"):
            # Recorded before: the script reads it when its ranks have saved, and does not go on.
            record_event(run_dir, "cancelled", reason="by hpc-amp cancel")
            _drop_links(scheduler, run_dir, status.job_id)
            try:
                if status.state == "running" and not scheduler.signals_ranks:
                    _let_save(scheduler, status, on_wait)
            finally:
                scheduler.cancel(status.job_id)
        else:
            _drop_links(scheduler, run_dir, status.job_id)
    return status


def _drop_links(scheduler: Scheduler, run_dir: Path, job_id: str) -> None:
    """Delete the jobs that wait for this one, the last one first: none shall start meanwhile."""
    for link in reversed(read_chain(run_dir)):
        if link != job_id:
            scheduler.cancel(link)


def _let_save(scheduler: Scheduler, status: RunStatus, on_wait: Callable[[], object]) -> None:
    """Ask the ranks of a built-in task to save and stop, and wait for the job to end."""
    run_dir = Path(status.run_dir)
    if rundir.read_resolved(run_dir)["job"].get("train") is None:
        return  # a program of the user's own knows no stop file
    try:
        (run_dir / "attempts" / str(status.attempt) / "stop").touch()
    except OSError as error:
        raise UsageError(f"the run cannot be asked to save: {error}") from None
    on_wait()
    deadline = time.monotonic() + SAVE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        answer = scheduler.query([status.job_id or ""]).get(status.job_id or "")
        if answer is None or answer.state == "ended":
            return
