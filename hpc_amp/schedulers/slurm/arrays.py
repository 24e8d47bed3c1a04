"""`sbatch --array`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.arrays import Answers, Arrays, bound
from hpc_amp.schedulers.base import complaint, run_command
from hpc_amp.schedulers.slurm.states import job_status


class SlurmArrays(Arrays):
    """One job whose tasks have ids of their own: `41_7`."""

    task = "${SLURM_ARRAY_TASK_ID:-0}"

    def largest(self) -> int:
        """MaxArraySize, which is one more than the largest index; 1001 unless the site says so."""
        try:
            said = run_command(["scontrol", "show", "config"]).stdout
        except SchedulerError:
            said = ""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
        return int(found[1]) if found and int(found[1]) > 0 else 1001

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Behind the others: of two `--array` the last counts."""
        return [*directives, f"--array=0-{tasks - 1}{bound(tasks, at_once)}"]

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """`41_7`."""
        return f"{job_ids[0]}_{task}" if job_ids else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """`squeue -r`, which lists every task by itself, also those that wait."""
        user = str(os.getuid())  # not every node knows everybody's name
        result = run_command(["squeue", "-h", "-r", "-u", user, "--states=all", "-o", "%i|%T|%r"])
        if result.returncode != 0:
            raise SchedulerError(f"squeue does not answer: {complaint(result)}")
        rows = (line.strip().split("|", 2) for line in result.stdout.splitlines())
        return {row[0]: job_status(row[1], row[2]) for row in rows if len(row) == 3}

    def array_of(self, job_id: str) -> str:
        """`41` of `41_7`, and of the `41_[8-99]` that wait."""
        return job_id.partition("_")[0]

    def find(self, folder: Path, script: Path) -> list[str]:
        """By the folder of the script: those of points lie below."""
        jobs = self.scheduler.queued().items()
        return [self.array_of(job_id) for job_id, path in jobs if path.parent == folder]
