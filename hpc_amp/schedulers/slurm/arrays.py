"""Arrays of Slurm: `sbatch --array`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.arrays import Answers, Arrays, bound
from hpc_amp.schedulers.base import run_command
from hpc_amp.schedulers.slurm import squeue


class SlurmArrays(Arrays):
    """An array is one job. Its tasks have ids such as `41_7`."""

    task = "${SLURM_ARRAY_TASK_ID:-0}"

    def largest(self) -> int:
        """Slurm's MaxArraySize, which is one more than the largest index. Its default is 1001."""
        try:
            settings = run_command(["scontrol", "show", "config"]).stdout
        except SchedulerError:
            settings = ""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.MULTILINE)
        return int(found[1]) if found and int(found[1]) > 0 else 1001

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Add `--array` after the others: if it is repeated, the last one counts."""
        return [*directives, f"--array=0-{tasks - 1}{bound(tasks, at_once)}"]

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task, such as `41_7`."""
        return f"{job_ids[0]}_{task}" if job_ids else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query with `squeue -r`, which lists each task separately, also waiting ones."""
        return squeue.statuses("-r")

    def array_of(self, job_id: str) -> str:
        """`41` for the task `41_7`, and for the waiting tasks `41_[8-99]`."""
        return job_id.partition("_")[0]

    def find(self, folder: Path, script: Path) -> list[str]:
        """Jobs whose script lies in the folder. The scripts of single points lie below it."""
        jobs = self.scheduler.queued().items()
        return [self.array_of(job_id) for job_id, path in jobs if path.parent == folder]
