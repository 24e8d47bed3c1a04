"""Cobalt has no arrays: a job a task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpc_amp.schedulers.arrays import OneByOne
from hpc_amp.schedulers.cobalt.submission import qsub


class CobaltArrays(OneByOne):
    """The number of a task travels with `--env`, so that all have the same script."""

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job after the other, until the queue takes no more."""
        for task in range(tasks):
            yield qsub(["--env", f"HPC_AMP_TASK={task}"], script, os.environ).job_id

    def find(self, folder: Path, script: Path) -> list[str]:
        """By the script. In the order of their ids they are the tasks."""
        return [job_id for job_id, path in self.scheduler.queued().items() if path == script]
