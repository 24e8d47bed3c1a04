"""Submissions of which the command was killed before it had the scheduler's answer.

Whoever settles them holds the campaign (`lock`), so no such command is still at work. But the
scheduler's own command outlives it.
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
    """Find out what has become of such submissions: tasks of them have begun, or the queue has
    them, or, when the scheduler's command has had its time, they were never submitted. Calls
    `on_wait` once if that takes a while. Raises SchedulerError where the scheduler does not
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
        job_ids = _jobs_of(campaign, arrays, one)
        if job_ids or time.time() - one.since > patience:
            record_queued(campaign, one, job_ids)


def _jobs_of(campaign: Campaign, arrays: Arrays, one: Submitted) -> list[str]:
    """The ids of an array, or of its jobs, as far as its tasks and the queue know them."""
    others = {job_id for other in read_submitted(campaign) for job_id in other.job_ids}
    found = {arrays.array_of(job_id) for job_id in _begun(campaign, one)}
    found |= set(arrays.find(campaign.folder, campaign.folder / f"array-{one.number}.sh"))
    return sorted(found - others, key=lambda job_id: (len(job_id), job_id))


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
