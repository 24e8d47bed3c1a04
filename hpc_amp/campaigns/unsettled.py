"""Runs of which the command that submitted them was killed before it had the scheduler's answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.settling import settle_all
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.jobs.unsettled import ANSWER_SECONDS, INTERRUPTED
from hpc_amp.schedulers import get_scheduler


@dataclass(frozen=True, slots=True)
class _Unsettled:
    run_dir: Path
    scheduler: str
    folder: Path
    """Of the script that was to be submitted."""
    since: int


def settle(run_dirs: Callable[[], Iterable[Path]], on_wait: Callable[[], object]) -> None:
    """Find out what has become of such runs: the queue knows their job, or they have begun, or,
    when the scheduler's command has had its time, they were never submitted. `on_wait` is told when
    that takes a while. Raises SchedulerError where the scheduler does not answer."""
    settle_all(lambda: any(_unsettled(run_dirs())), lambda: _look(run_dirs), on_wait)


def _look(run_dirs: Callable[[], Iterable[Path]]) -> None:
    open_runs = list(_unsettled(run_dirs()))
    found = {
        (run.scheduler, run.folder): get_scheduler(run.scheduler).find_jobs(run.folder)
        for run in open_runs
    }
    # What has begun since then speaks for itself.
    for run in [run for run in open_runs if run in set(_unsettled(run_dirs()))]:
        known = {str(event.get("job_id")) for event in read_events(run.run_dir)}
        job_ids = [one for one in found[run.scheduler, run.folder] if one not in known]
        if job_ids:
            record_event(run.run_dir, "queued", job_id=job_ids[0])
        elif time.time() - run.since > ANSWER_SECONDS:
            record_event(run.run_dir, "failed", reason=INTERRUPTED)


def _unsettled(run_dirs: Iterable[Path]) -> Iterator[_Unsettled]:
    for run_dir in sorted(set(run_dirs)):
        events = read_events(run_dir)
        # The script or the scheduler's answer would have added an event.
        if events and events[-1]["state"] == "submitted":
            last = events[-1]
            folder = Path(last.get("folder", run_dir))
            yield _Unsettled(run_dir, str(last.get("scheduler")), folder, int(last["time"]))
