"""Campaigns on this machine, which has no queue: the command itself runs the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.answers import JobStatus
from hpc_amp.schedulers.arrays import Answers, Arrays
from hpc_amp.schedulers.local.processes import id_of_process


class LocalArrays(Arrays):
    """The process of the command that started the campaign is the array's job. It runs the
    points."""

    task = "$HPC_AMP_TASK"
    shell = "bash"
    takes_time = False
    in_foreground = True

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Not used: see `hpc_amp.campaigns.here`."""
        raise SchedulerError("on this machine arrays run in the foreground")

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of the command that will start the task."""
        return job_ids[0] if job_ids else None

    def find(self, folder: Path, script: Path) -> list[str]:
        """Empty: a sweep whose command has ended has no jobs."""
        return []

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query which processes are alive. While the command is alive, its points are pending."""
        answers = self.scheduler.query([*arrays, *jobs])
        alive = [job_id for job_id in arrays if answers[job_id].state == "running"]
        return {**answers, **dict.fromkeys(alive, JobStatus("pending"))}

    def id_of_process(self, pid: int) -> str:
        """The id of a process, which includes its start time."""
        return id_of_process(pid)
