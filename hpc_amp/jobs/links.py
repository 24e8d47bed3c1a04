"""`chain`: the jobs that were submitted together to follow one another, one id a line.

For schedulers that cannot requeue a job. The launch script reads it too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import HpcAmpError, SchedulerError, UsageError
from hpc_amp.schedulers import Scheduler, Submission


def submit_chain(scheduler: Scheduler, run_dir: Path, links: int) -> Submission:
    """Submit the run's script, and `links` times more to start after the one before. Raises
    SchedulerError or UsageError; no job stays behind then that can be deleted.

    The first one is held until all are there: nothing can wait for a job that has ended already.
    """
    script, path = run_dir / "launch.sh", run_dir / "chain"
    path.unlink(missing_ok=True)
    if links == 0:
        return scheduler.submit(script, os.environ)
    first = scheduler.submit(script, os.environ, held=True)
    job_ids = [first.job_id]
    try:
        for _ in range(links):
            job_ids.append(scheduler.submit(script, os.environ, after=job_ids[-1]).job_id)
        path.write_text("".join(f"{job_id}\n" for job_id in job_ids))
        scheduler.release(first.job_id)
    except OSError as error:
        stay = _take_back(scheduler, job_ids)
        raise UsageError(f"the chain cannot be recorded: {error}{stay}") from None
    except HpcAmpError as error:
        stay = _take_back(scheduler, job_ids)
        raise SchedulerError(f"{error}{stay}") from None
    return first


def _take_back(scheduler: Scheduler, job_ids: Sequence[str]) -> str:
    """Delete jobs, the last one first. Says which the scheduler keeps, for an error."""
    kept = []
    for job_id in reversed(job_ids):
        try:
            scheduler.cancel(job_id)
        except SchedulerError:
            kept.append(job_id)
    return f"; still in the queue: {', '.join(kept)}" if kept else ""


def read_chain(run_dir: Path) -> list[str]:
    """The chain's job ids in order; none for a run without one."""
    try:
        return (run_dir / "chain").read_text().split()
    except OSError:
        return []
