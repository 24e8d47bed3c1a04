"""Runs of which the command that submitted them was killed before it had the scheduler's answer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers import local
from hpc_amp.schedulers.base import complaint, run_command
from hpc_amp.study.folder import Study

# The scheduler's command outlives ours. sbatch, for one, asks a busy controller again for two
# minutes (MAX_RETRIES in its source).
ANSWER_SECONDS = 180
POLL_SECONDS = 3.0
INTERRUPTED = "its submission was interrupted"


@dataclass(frozen=True, slots=True)
class _Unsettled:
    run_dir: Path
    scheduler: str
    folder: Path
    """Of the script that was to be submitted."""
    since: int


def settle(study: Study, on_wait: Callable[[], object]) -> None:
    """Find out what has become of such runs: the queue knows their job, or they have begun, or,
    when the scheduler's command has had its time, they were never submitted. `on_wait` is told when
    that takes a while. Raises SchedulerError where the scheduler does not answer."""
    told = False
    while open_runs := list(_unsettled(study)):
        found = {
            (run.scheduler, run.folder): find_job(run.scheduler, run.folder) for run in open_runs
        }
        # What has begun since then speaks for itself.
        for run in [run for run in open_runs if run in set(_unsettled(study))]:
            job_id = found[run.scheduler, run.folder]
            if job_id is not None:
                record_event(run.run_dir, "queued", job_id=job_id)
            elif time.time() - run.since > ANSWER_SECONDS:
                record_event(run.run_dir, "failed", reason=INTERRUPTED)
        if any(_unsettled(study)):
            if not told:
                on_wait()
                told = True
            time.sleep(POLL_SECONDS)


def _unsettled(study: Study) -> Iterator[_Unsettled]:
    run_dirs = {study.run_dir(planned) for planned in study.planned_runs()}
    for run_dir in sorted(filter(None, run_dirs)):
        events = read_events(run_dir)
        # The script or the scheduler's answer would have added an event.
        if events and events[-1]["state"] == "submitted":
            last = events[-1]
            folder = Path(last.get("folder", run_dir))
            yield _Unsettled(run_dir, str(last.get("scheduler")), folder, int(last["time"]))


def find_job(scheduler: str, folder: Path) -> str | None:
    """The id of the job whose script lies in `folder`, as far as the queue shows jobs; the folder
    is its working directory, and its log lies in there. Raises SchedulerError where the scheduler
    does not answer."""
    jobs = _QUEUES[scheduler]() if scheduler in _QUEUES else {}
    return next((job_id for job_id, path in jobs.items() if folder in (path, *path.parents)), None)


def queued_on_slurm() -> dict[str, Path]:
    """Working directories of jobs."""
    command = ["squeue", "-h", "-u", str(os.getuid()), "--states=all", "-o", "%i|%Z"]
    rows = (line.strip().partition("|") for line in _said(command).splitlines())
    return {job_id: Path(path) for job_id, _, path in rows if path}


def queued_on_pbs() -> dict[str, Path]:
    """Logs of jobs."""
    text = _said(["qstat", "-f"]).replace("\n\t", "")  # long values go on behind a tab
    jobs = {}
    for block in text.split("Job Id: ")[1:]:
        output = re.search(r"^ *Output_Path = [^:]*:(.*)$", block, re.MULTILINE)
        if output is not None:
            jobs[block.split()[0]] = Path(output[1])
    return jobs


def queued_on_cobalt() -> dict[str, Path]:
    """Scripts of jobs: Cobalt takes none with a blank in its path."""
    rows = (line.split() for line in _said(["qstat", "--header", "JobID:Command"]).splitlines())
    return {row[0]: Path(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}


def _local() -> dict[str, Path]:
    """Scripts of the processes on this machine."""
    jobs = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        started = local.start_time(int(process.name))
        if words[0] == b"bash" and len(words) > 1 and started is not None:
            jobs[f"local-{process.name}-{started}"] = Path(os.fsdecode(words[1]))
    return jobs


_QUEUES: dict[str, Callable[[], dict[str, Path]]] = {
    "slurm": queued_on_slurm,
    "pbs": queued_on_pbs,
    "cobalt": queued_on_cobalt,
    "local": _local,
}


def _said(command: list[str]) -> str:
    result = run_command(command)
    if result.returncode != 0 and (result.stdout.strip() or result.stderr.strip()):
        raise SchedulerError(f"{command[0]} does not answer: {complaint(result)}")
    return result.stdout
