"""Jobs that the scheduler may have taken although the command that submitted them got no answer, or
was killed before it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hpc_amp.errors import SchedulerError, UnclearError
from hpc_amp.schedulers import Submission, get_scheduler

# The scheduler's command outlives ours. Some ask a busy server again for two
# minutes (MAX_RETRIES in the source of one).
ANSWER_SECONDS = 180
INTERRUPTED = "its submission was interrupted"


def or_found(
    submit: Callable[[], Submission], scheduler: str, folder: Path, known: Collection[str]
) -> Submission:
    """What `submit` gives; where it got no clear answer, the job of `folder` that the queue has
    besides the `known` ones. Raises SchedulerError, and UnclearError where it is not there (yet) or
    the queue cannot be seen."""
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
    """The jobs of a run whose newest submission has no id yet, without those of submissions before
    it. Raises SchedulerError where the scheduler does not answer."""
    known = {str(event.get("job_id")) for event in events}
    return [job_id for job_id in get_scheduler(scheduler).find_jobs(folder) if job_id not in known]


def may_still_come(submitted: int) -> bool:
    """Whether the scheduler may still take a job whose submission began at that time, in seconds
    since the epoch."""
    return time.time() - submitted <= ANSWER_SECONDS
