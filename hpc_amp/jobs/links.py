"""`chain`: the jobs that were submitted together to follow one another, one id a line.

For schedulers that cannot requeue a job. The launch script reads it too.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpc_amp.errors import HpcAmpError
from hpc_amp.schedulers import Scheduler, Submission


def submit_chain(scheduler: Scheduler, run_dir: Path, links: int) -> Submission:
    """Submit the run's script, and `links` times more to start after the one before. Raises
    SchedulerError; no job stays behind then.

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
    except (HpcAmpError, OSError):
        for job_id in reversed(job_ids):
            scheduler.cancel(job_id)
        raise
    return first


def read_chain(run_dir: Path) -> list[str]:
    """The chain's job ids in order; none for a run without one."""
    try:
        return (run_dir / "chain").read_text().split()
    except OSError:
        return []
