"""`chain`: the jobs that were submitted together to follow one another, one id a line.

For schedulers that cannot requeue a job. The launch script reads it too.
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
    """Submit the run's script, and `links` times more to start after the one before. Raises
    SchedulerError or UsageError; no job stays behind then. UnclearError says that there may be one,
    or that the scheduler did not take one back.

    The first one is held until all are there: nothing can wait for a job that has ended already.
    A signal that waits (`signals.uninterrupted`) ends the chain before its next link.
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
    """The error of a chain that did not come about, and of which the scheduler has `kept` jobs."""
    said = (
        str(error) if isinstance(error, HpcAmpError) else f"the chain cannot be recorded: {error}"
    )
    if kept:
        return UnclearError(f"{said}; could not be deleted again: {', '.join(kept)}")
    if isinstance(error, OSError):
        return UsageError(said)
    return UnclearError(said) if isinstance(error, UnclearError) else SchedulerError(said)


def _take_back(scheduler: Scheduler, job_ids: Sequence[str]) -> list[str]:
    """Delete jobs, the last one first; those that the scheduler keeps."""
    kept = []
    for job_id in reversed(job_ids):
        try:
            scheduler.cancel(job_id)
        except SchedulerError:
            kept.append(job_id)
    return kept


def write_chain(run_dir: Path, job_ids: Sequence[str]) -> None:
    """Record the chain. Raises OSError."""
    (run_dir / "chain").write_text("".join(f"{job_id}\n" for job_id in job_ids))


def read_chain(run_dir: Path) -> list[str]:
    """The chain's job ids in order; none for a run without one."""
    try:
        return (run_dir / "chain").read_text().split()
    except OSError:
        return []
