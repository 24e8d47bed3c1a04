"""The status of jobs, from squeue."""

from __future__ import annotations

import os
import time

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.answers import NEVER_STARTS, JobStatus
from hpc_amp.schedulers.base import complaint, run_command

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}
_RUNNING |= {"STAGE_OUT", "RESIZING"}


def statuses(*options: str) -> dict[str, JobStatus]:
    """The status of all jobs of the user, by id. `options` are further options of squeue. Raises
    SchedulerError if it does not answer.

    Jobs are not named in the request: squeue refuses the whole request if it does not know one.
    """
    user = str(os.getuid())  # some nodes do not know the user's name
    columns = "%i|%T|%r|%S"
    result = run_command(["squeue", "-h", *options, "-u", user, "--states=all", "-o", columns])
    if result.returncode != 0:
        raise SchedulerError(f"squeue does not answer: {complaint(result)}")
    rows = (line.strip().split("|", 2) for line in result.stdout.splitlines())
    return {row[0]: job_status(row[1], *_reason_and_start(row[2])) for row in rows if len(row) == 3}


def _reason_and_start(text: str) -> tuple[str, str]:
    """The last two columns. A reason may contain the separator."""
    reason, separator, start = text.rpartition("|")
    return (reason, start) if separator else (text, "")


def job_status(state: str, reason: str, start: str = "") -> JobStatus:
    """The status of a job from squeue's state (`%T`), reason (`%r`) and time of start (`%S`), which
    for a job that waits is the expected one, or N/A."""
    if state in _PENDING and reason == "DependencyNeverSatisfied":
        return NEVER_STARTS
    if state in _PENDING:
        return JobStatus("pending", "" if reason == "None" else reason, start=_time(start))
    if state in _RUNNING:
        return JobStatus("running")
    return JobStatus("ended", state)


def _time(text: str) -> int | None:
    """A time of squeue, which is local, in seconds since the epoch. None for N/A, and if the user
    has chosen another form with SLURM_TIME_FORMAT."""
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None
