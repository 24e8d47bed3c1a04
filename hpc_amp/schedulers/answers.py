"""What schedulers answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the scheduler says of a job now."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    """In the scheduler's words: why it waits, or how it ended."""
    after: bool = False
    """Whether it waits for the end of another job."""
    stuck: bool = False
    """Whether it stays in the queue although it can never start. Its state is `ended`."""


NEVER_STARTS = JobStatus(
    "ended", "the job it waits for failed or was deleted, so it can never start", stuck=True
)
NOT_IN_QUEUE = JobStatus("ended", "it is not in the queue")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that the scheduler accepted."""

    job_id: str
    remarks: str = ""
    """What the scheduler said besides, which the user should see."""
