"""The status of jobs, from squeue."""

from __future__ import annotations

import os

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
    result = run_command(["squeue", "-h", *options, "-u", user, "--states=all", "-o", "%i|%T|%r"])
    if result.returncode != 0:
        raise SchedulerError(f"squeue does not answer: {complaint(result)}")
    rows = (line.strip().split("|", 2) for line in result.stdout.splitlines())
    return {row[0]: job_status(row[1], row[2]) for row in rows if len(row) == 3}


def job_status(state: str, reason: str) -> JobStatus:
    """The status of a job from squeue's state (`%T`) and reason (`%r`)."""
    if state in _PENDING and reason == "DependencyNeverSatisfied":
        return NEVER_STARTS
    if state in _PENDING:
        return JobStatus("pending", "" if reason == "None" else reason)
    if state in _RUNNING:
        return JobStatus("running")
    return JobStatus("ended", state)
