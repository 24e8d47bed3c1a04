"""Sweeps on Cobalt, which has no arrays: one job for each task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpc_amp.schedulers.arrays import OneByOne
from hpc_amp.schedulers.cobalt.submission import qsub


class CobaltArrays(OneByOne):
    """All tasks have the same script. `--env` gives each its number."""

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Submit one job after the other, until Cobalt refuses one."""
        for task in range(tasks):
            yield qsub(["--env", f"HPC_AMP_TASK={task}"], script, os.environ).job_id

    def find(self, folder: Path, script: Path) -> list[str]:
        """The jobs with this script. In the order of their ids, they are the tasks."""
        return [job_id for job_id, path in self.scheduler.queued().items() if path == script]
