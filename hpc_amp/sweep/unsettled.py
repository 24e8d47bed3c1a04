"""Arrays whose submission was interrupted before the scheduler had answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpc_amp.campaigns.settling import settle_all
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.unsettled import ANSWER_SECONDS
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.arrays import Arrays
from hpc_amp.sweep.folder import Sweep
from hpc_amp.sweep.record import Submitted, read_submitted, record_queued


def settle(sweep: Sweep, on_wait: Callable[[], object]) -> None:
    """Find out what has become of such arrays: tasks of them have begun, or the queue has them, or,
    when the scheduler's command has had its time, they were never submitted. `on_wait` is told when
    that takes a while. Raises SchedulerError where the scheduler does not answer."""
    settle_all(lambda: bool(_unsettled(sweep)), lambda: _look(sweep), on_wait)


def _unsettled(sweep: Sweep) -> list[Submitted]:
    return [one for one in read_submitted(sweep) if not one.has_ended]


def _look(sweep: Sweep) -> None:
    arrays = get_scheduler(sweep.scheduler).arrays()
    patience = ANSWER_SECONDS if arrays.takes_time else 0
    for one in _unsettled(sweep):
        job_ids = _jobs_of(sweep, arrays, one)
        if job_ids or time.time() - one.since > patience:
            record_queued(sweep, one, job_ids)


def _jobs_of(sweep: Sweep, arrays: Arrays, one: Submitted) -> list[str]:
    """The ids of an array, or of its jobs, as far as its tasks and the queue tell."""
    others = {job_id for other in read_submitted(sweep) for job_id in other.job_ids}
    found = {arrays.array_of(job_id) for job_id in _begun(sweep, one)}
    found |= set(arrays.find(sweep.folder, sweep.folder / f"array-{one.number}.sh"))
    return sorted(found - others, key=lambda job_id: (len(job_id), job_id))


def _begun(sweep: Sweep, one: Submitted) -> Iterator[str]:
    """The ids that tasks of an array have recorded."""
    for index in one.points:
        number = None
        for event in read_events(sweep.point_dir(index)):
            if event["state"] == "submitted":
                number = event.get("array")
            elif event["state"] == "queued" and number == one.number:
                yield str(event["job_id"])
                break  # what follows may be a job of its own
