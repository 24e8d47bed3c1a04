"""Arrays of Grid Engine: `qsub -t`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.arrays import Answers, Arrays
from hpc_amp.schedulers.base import retried, run_command
from hpc_amp.schedulers.gridengine import qstat


class GridEngineArrays(Arrays):
    """An array is one job. Grid Engine numbers its tasks from 1: `41.8` is task 7."""

    task = "$((SGE_TASK_ID - 1))"

    def largest(self) -> int:
        """Grid Engine's max_aj_tasks. Its default is 75000."""
        try:
            settings = run_command(["qconf", "-sconf"]).stdout
        except SchedulerError:
            settings = ""
        found = re.search(r"^max_aj_tasks\s+(\d+)", settings, re.MULTILINE)
        return int(found[1]) if found and int(found[1]) > 0 else 75_000

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Add `-t` after the others: if it is repeated, the last one counts."""
        limit = [] if at_once is None or at_once >= tasks else [f"-tc {at_once}"]
        return [*directives, f"-t 1-{tasks}", *limit]

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task, such as `41.8`."""
        return f"{job_ids[0]}.{task + 1}" if job_ids else None

    @retried
    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query all jobs and tasks of the user. The reasons why they wait are not queried, because
        they may be long."""
        return {job.id: job.status() for job in qstat.queued_jobs()}

    def final_status(self, job_ids: Sequence[str]) -> Answers:
        """From the accounting file."""
        return qstat.ended(job_ids)

    def array_of(self, job_id: str) -> str:
        """`41` for the task `41.8`."""
        return job_id.partition(".")[0]

    def find(self, folder: Path, script: Path) -> list[str]:
        """The jobs with this working directory. Those of single points have another one."""
        return [job_id for job_id, path in self.scheduler.queued().items() if path == folder]
