"""The states of jobs, as squeue calls them."""

from __future__ import annotations

from hpc_amp.schedulers.answers import NEVER_STARTS, JobStatus

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"}
_RUNNING |= {"STAGE_OUT", "RESIZING"}


def job_status(state: str, reason: str) -> JobStatus:
    """From squeue's `%T` and `%r`."""
    if state in _PENDING and reason == "DependencyNeverSatisfied":
        return NEVER_STARTS
    if state in _PENDING:
        return JobStatus("pending", "" if reason == "None" else reason)
    if state in _RUNNING:
        return JobStatus("running")
    return JobStatus("ended", state)
