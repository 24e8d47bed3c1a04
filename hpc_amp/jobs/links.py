"""Chains: jobs of one run that are submitted together, each waiting for the one before.

Chains are for schedulers that cannot requeue a job. The file `chain` of a run has their ids, one
per line. The launch script reads it too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import HpcAmpError, SchedulerError, UnclearError, UsageError
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.unsettled import or_found
from hpc_amp.schedulers import Scheduler, Submission
from hpc_amp.signals import INTERRUPTING


def submit_chain(scheduler: Scheduler, run_dir: Path, links: int) -> Submission:
    """Submit a run's script once, and `links` more jobs that each start after the one before.
    Returns the submission of the first job.

    The first job is held until all are submitted, because no job can be submitted to wait for one
    that has already ended. A pending signal (see `signals.uninterrupted`) ends the submission
    before the next job.

    Raises SchedulerError or UsageError if a job cannot be submitted; the jobs before it are
    deleted. Raises UnclearError if a job may exist, or could not be deleted.
    """
    script = run_dir / "launch.sh"
    (run_dir / "chain").unlink(missing_ok=True)
    before = {str(event["job_id"]) for event in read_events(run_dir) if event.get("job_id")}
    job_ids: list[str] = []

    def submit(*, after: str | None = None, held: bool = False) -> Submission:
        submission = or_found(
            lambda: scheduler.submit(script, os.environ, after=after, held=held),
            scheduler.name,
            run_dir,
            known={*before, *job_ids},
        )
        job_ids.append(submission.job_id)
        return submission

    if links == 0:
        return submit()
    first = submit(held=True)
    try:
        for _ in range(links):
            if signal.sigpending() & INTERRUPTING:
                raise SchedulerError("interrupted")
            submit(after=job_ids[-1])
        write_chain(run_dir, job_ids)
        scheduler.release(first.job_id)
    except (OSError, HpcAmpError) as error:
        raise _without_chain(error, _take_back(scheduler, job_ids)) from None
    return first


def _without_chain(error: OSError | HpcAmpError, kept: Sequence[str]) -> HpcAmpError:
    """The error of a chain that could not be submitted. `kept` are jobs that could not be
    deleted."""
    is_file_error = isinstance(error, OSError)
    message = f"the chain cannot be recorded: {error}" if is_file_error else str(error)
    if kept:
        message += f"; could not be deleted again: {', '.join(kept)}"
    if kept or isinstance(error, UnclearError):
        return UnclearError(message)
    return UsageError(message) if is_file_error else SchedulerError(message)


def _take_back(scheduler: Scheduler, job_ids: Sequence[str]) -> list[str]:
    """Delete jobs, the last one first. Returns those that the scheduler did not delete."""
    kept = []
    for job_id in reversed(job_ids):
        try:
            scheduler.cancel(job_id)
        except SchedulerError:
            kept.append(job_id)
    return kept


def write_chain(run_dir: Path, job_ids: Sequence[str]) -> None:
    """Write the ids of a chain's jobs, in order. Raises OSError."""
    (run_dir / "chain").write_text("".join(f"{job_id}\n" for job_id in job_ids))


def read_chain(run_dir: Path) -> list[str]:
    """The ids of a chain's jobs, in order. Empty for a run without a chain."""
    try:
        return (run_dir / "chain").read_text().split()
    except OSError:
        return []
