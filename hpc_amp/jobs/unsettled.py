"""Unsettled submissions: the command that submitted a job got no clear answer from the scheduler,
or was killed before the answer. The job may be in the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hpc_amp.errors import SchedulerError, UnclearError
from hpc_amp.schedulers import Submission, get_scheduler

ANSWER_SECONDS = 180
"""Seconds after which a submission is settled. The scheduler's submit command may continue after
hpc-amp was killed; some repeat their request to a busy server for two minutes."""
INTERRUPTED = "its submission was interrupted"


def or_found(
    submit: Callable[[], Submission], scheduler: str, folder: Path, known: Collection[str]
) -> Submission:
    """Call `submit` and return its submission. If the scheduler gives it no clear answer, the queue
    is searched for a job of `folder` that is not among the `known` ids. Raises SchedulerError if
    the scheduler refuses, and UnclearError if no such job is in the queue (yet) or the queue cannot
    be read."""
    try:
        return submit()
    except UnclearError as error:
        try:
            found = [one for one in get_scheduler(scheduler).find_jobs(folder) if one not in known]
        except SchedulerError:
            raise error from None
        if not found:
            raise
        return Submission(found[0], f"{error.message}; job {found[0]} was found in the queue")


def found_since(scheduler: str, folder: Path, events: Collection[dict[str, Any]]) -> list[str]:
    """The ids of jobs in the queue that belong to the run in `folder` and that its `events` do not
    name. Raises SchedulerError if the scheduler does not answer."""
    known = {str(event.get("job_id")) for event in events}
    return [job_id for job_id in get_scheduler(scheduler).find_jobs(folder) if job_id not in known]


def may_still_come(submitted: int) -> bool:
    """Whether the scheduler may still accept a job whose submission began at the time `submitted`,
    in seconds since the epoch."""
    return time.time() - submitted <= ANSWER_SECONDS
