"""Runs of another cluster that shares its file system with this one: their jobs are not in the
queue here, and a job with the same id may be another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.files import read_json
from hpc_amp.jobs.events import FINAL, read_events
from hpc_amp.schedulers import get_scheduler


def other_cluster(scheduler: str, events: Sequence[dict[str, Any]]) -> str | None:
    """The cluster on which a run was submitted last, if this machine belongs to another one. None
    if it is the same one, or if that is not known."""
    submissions = [event for event in events if event["state"] == "submitted"]
    recorded = submissions[-1].get("cluster") if submissions else None
    if not isinstance(recorded, str):
        return None
    try:
        here = get_scheduler(scheduler).cluster()
    except SchedulerError:
        return None  # its job.json cannot be read
    return recorded if here and here != recorded else None


def refuse_other_cluster(run_dir: Path) -> None:
    """Raise UsageError if the job of a run is in the queue of another cluster. A run that has ended
    has none."""
    events = read_events(run_dir)
    has_ended = bool(events) and events[-1]["state"] in FINAL
    if has_ended or not any("cluster" in event for event in events):
        return
    scheduler = str(read_json(run_dir / "job.json").get("scheduler", ""))
    name = other_cluster(scheduler, events)
    if name is not None:
        raise UsageError(f"{run_dir} was submitted on the cluster {name}", hint="log in there")
