"""Submissions whose command was killed before it got the scheduler's answer.

A command that settles them holds the lock of the campaign (`lock`), so the killed command does not
run any more. But the scheduler's own command, such as `qsub`, may still run and submit its job. At
most one job of a submission is unknown, because jobs are submitted one after the other and each one
is recorded when it is accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpc_amp.campaigns.folder import Campaign, run_name
from hpc_amp.campaigns.parts import arrays_of
from hpc_amp.campaigns.record import Submitted, read_submitted, record_queued
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.unsettled import ANSWER_SECONDS
from hpc_amp.schedulers.arrays import Arrays

POLL_SECONDS = 3.0


def settle(campaign: Campaign, on_wait: Callable[[], object]) -> None:
    """Find the unknown job of each such submission: a task of it has begun, or it is in the queue.
    If it is not found within the time that the scheduler's command may take, it was not submitted.
    Calls `on_wait` once before it waits for that. Raises SchedulerError if the scheduler does not
    answer."""
    waits = False
    while _unsettled(campaign):
        _look(campaign)
        if _unsettled(campaign):
            if not waits:
                on_wait()
                waits = True
            time.sleep(POLL_SECONDS)


def _unsettled(campaign: Campaign) -> list[Submitted]:
    return [one for one in read_submitted(campaign) if not one.has_ended]


def _look(campaign: Campaign) -> None:
    arrays = arrays_of(campaign)
    patience = ANSWER_SECONDS if arrays.takes_time else 0
    for one in _unsettled(campaign):
        found = _unrecorded_jobs(campaign, arrays, one)
        is_complete = len(one.job_ids) == len(one.points)
        if found or is_complete or time.time() - one.since > patience:
            record_queued(campaign, one, [*one.job_ids, *found])


def _unrecorded_jobs(campaign: Campaign, arrays: Arrays, one: Submitted) -> list[str]:
    """The ids of jobs of a submission that are not on record, from its tasks and the queue."""
    known = {job_id for other in read_submitted(campaign) for job_id in other.job_ids}
    found = {arrays.array_of(job_id) for job_id in _begun(campaign, one)}
    found |= set(arrays.find(campaign.folder, campaign.folder / f"array-{one.number}.sh"))
    return sorted(found - known, key=lambda job_id: (len(job_id), job_id))


def _begun(campaign: Campaign, one: Submitted) -> Iterator[str]:
    """The ids that tasks of an array have recorded."""
    names = campaign.run_names()
    for index in one.points:
        number = None
        for event in read_events(campaign.folder / "points" / names.get(index, run_name(index))):
            if event["state"] == "submitted":
                number = event.get("array")
            elif event["state"] == "queued" and number == one.number:
                yield str(event["job_id"])
                break  # what follows may be a job of its own
