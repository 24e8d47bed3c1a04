"""This machine has no queue that would hold the points of a campaign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.answers import JobStatus
from hpc_amp.schedulers.arrays import Answers, Arrays
from hpc_amp.schedulers.local.processes import id_of_process


class LocalArrays(Arrays):
    """This machine: the command that started the campaign runs its points. It is the job of the
    array."""

    task = "$HPC_AMP_TASK"
    shell = "bash"
    takes_time = False
    in_foreground = True

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Nobody takes it: see `hpc_amp.campaigns.here`."""
        raise SchedulerError("on this machine arrays run in the foreground")

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The command that will start it."""
        return job_ids[0] if job_ids else None

    def find(self, folder: Path, script: Path) -> list[str]:
        """The command that would have run it is gone."""
        return []

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Which processes are alive. While the command is, its points wait for their turn."""
        answers = self.scheduler.query([*arrays, *jobs])
        alive = [job_id for job_id in arrays if answers[job_id].state == "running"]
        return {**answers, **dict.fromkeys(alive, JobStatus("pending"))}

    def id_of_process(self, pid: int) -> str:
        """With its start time."""
        return id_of_process(pid)
