"""The submissions of a campaign: the events in the `state.jsonl` of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.parts import Part
from hpc_amp.jobs.events import read_events, record_event


@dataclass(frozen=True, slots=True)
class Submitted:
    """Points that were submitted together, as an array or a job. Task k is the point
    `points[k]`."""

    number: int
    points: tuple[int, ...]
    job_ids: tuple[str, ...] = ()
    """The id of the array, or the ids of its jobs in the order of the points. While the submission
    has not ended, there may be one job more than these."""
    has_ended: bool = False
    """Whether it is known which jobs the submission has."""
    cancelled: bool = False
    """Whether all its points were cancelled after it."""
    at_once: int | None = None
    """How many of its points may run at the same time. None: no limit."""
    since: int = 0
    """The time of the newest event of the submission, in seconds since the epoch: the scheduler has
    been asked for a job since then."""

    @property
    def was_refused(self) -> bool:
        """Whether the scheduler has accepted none of its jobs."""
        return self.has_ended and not self.job_ids


def record_submitted(campaign: Campaign, part: Part) -> None:
    """Record that a part is about to be submitted. This comes first, because the first task may
    start before the scheduler's command returns."""
    points = ranges.to_text(part.points)
    limit = {} if part.at_once is None else {"at_once": part.at_once}
    record_event(campaign.folder, "submitted", array=part.number, points=points, **limit)


def record_accepted(campaign: Campaign, part: Part, job_id: str) -> None:
    """Record that the scheduler has accepted the next job of a part whose points are single jobs.
    If the command is killed before `record_queued`, these events say which points have jobs."""
    record_event(campaign.folder, "accepted", array=part.number, job_id=job_id)


def record_queued(campaign: Campaign, part: Part | Submitted, job_ids: Sequence[str]) -> None:
    """Record the end of a submission. `job_ids` are the ids of the accepted jobs or of the
    array."""
    record_event(campaign.folder, "queued", array=part.number, job_ids=list(job_ids))


def record_cancelled(campaign: Campaign, reason: str) -> None:
    """Record that all points that were submitted until now are cancelled."""
    record_event(campaign.folder, "cancelled", reason=reason)


def record_dropped(campaign: Campaign, points: Sequence[int], reason: str) -> None:
    """Record that points are left out of the campaign."""
    record_event(campaign.folder, "dropped", points=ranges.to_text(points), reason=reason)


def read_dropped(campaign: Campaign) -> dict[int, str]:
    """The points that are left out of the campaign, each with the reason."""
    return {
        point: str(event.get("reason", ""))
        for event in read_events(campaign.folder)
        if event["state"] == "dropped" and event["points"]
        for point in ranges.from_text(event["points"])
    }


def read_submitted(campaign: Campaign) -> list[Submitted]:
    """All submissions, oldest first."""
    found: dict[int, Submitted] = {}
    for event in read_events(campaign.folder):
        number = event.get("array")
        if event["state"] == "cancelled":
            found = {key: replace(one, cancelled=True) for key, one in found.items()}
        elif event["state"] == "submitted":
            points = tuple(ranges.from_text(event["points"]))
            found[event["array"]] = Submitted(
                event["array"],
                points,
                at_once=event.get("at_once"),
                since=int(event.get("time", 0)),
            )
        elif event["state"] == "accepted" and number in found:
            job_ids = (*found[number].job_ids, str(event["job_id"]))
            since = int(event.get("time", 0))
            found[number] = replace(found[number], job_ids=job_ids, since=since)
        elif event["state"] == "queued" and number in found:
            job_ids = tuple(event["job_ids"])
            found[number] = replace(found[number], job_ids=job_ids, has_ended=True)
    return list(found.values())
