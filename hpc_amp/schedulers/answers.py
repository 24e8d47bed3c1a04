"""The answers of schedulers: the status of a job, and a submission."""

from __future__ import annotations

from typing import Literal, NamedTuple


class JobStatus(NamedTuple):
    """The present status of a job according to the scheduler."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    """Why it waits, or how it ended, as the scheduler reports it."""
    after: bool = False
    """Whether it waits for the end of another job."""
    stuck: bool = False
    """Whether it is in the queue although it can never start. Its state is then `ended`."""
    start: int | None = None
    """When the scheduler expects to start it, in seconds since the epoch. None if it does not say,
    or if the job does not wait."""


NEVER_STARTS = JobStatus(
    "ended", "the job it waits for failed or was deleted, so it can never start", stuck=True
)
NOT_IN_QUEUE = JobStatus("ended", "it is not in the queue")


class Submission(NamedTuple):
    """A job that the scheduler accepted."""

    job_id: str
    remarks: str = ""
    """Further messages of the scheduler for the user."""
