"""Arrays of PBS: `qsub -J`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.schedulers.answers import NOT_IN_QUEUE
from hpc_amp.schedulers.arrays import Answers, Arrays, bound
from hpc_amp.schedulers.base import UnreachableError, complaint, retried, run_command
from hpc_amp.schedulers.pbs.qstat import job_status, parse_qstat


class PbsArrays(Arrays):
    """An array is one job with `-J`. PBS refuses an array of one task, which is submitted as an
    ordinary job."""

    task = "${PBS_ARRAY_INDEX:-0}"

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Add `-J`, and give each task a log of its own: PBS would let all tasks write to one file
        from its beginning."""
        if tasks == 1:
            return list(directives)
        log = re.compile(r"^(-o .*)job\.log('?)$")
        lines = [log.sub(r"\1^array_index^.log\2", line) for line in directives]
        return [*lines, f"-J 0-{tasks - 1}{bound(tasks, at_once)}"]

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task, such as `490[7].server`."""
        if not job_ids:
            return None
        return job_ids[0].replace("[]", f"[{task}]")

    @retried
    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query with `qstat -f -t`, which lists each task separately."""
        result = run_command(["qstat", "-f", "-t", *arrays, *jobs])
        # 35: one of the jobs has ended; 153: one of them is unknown.
        if result.returncode not in (0, 35, 153):
            raise UnreachableError(f"qstat does not answer: {complaint(result)}")
        found = parse_qstat(result.stdout)
        return {job_id: job_status(attributes) for job_id, attributes in found.items()}

    def final_status(self, job_ids: Sequence[str]) -> Answers:
        """From the server's job history, if it keeps one."""
        found = parse_qstat(run_command(["qstat", "-x", "-f", *job_ids]).stdout)
        return {
            job_id: job_status(found[job_id]) if job_id in found else NOT_IN_QUEUE
            for job_id in job_ids
        }

    def array_of(self, job_id: str) -> str:
        """`490[].server` for the task `490[7].server`."""
        return re.sub(r"\[\d+\]", "[]", job_id)

    def find(self, folder: Path, script: Path) -> list[str]:
        """Jobs whose log lies in the folder's `logs`. Those of single points lie elsewhere."""
        jobs = self.scheduler.queued().items()
        return [job_id for job_id, path in jobs if path.parent == folder / "logs"]
