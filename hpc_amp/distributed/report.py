"""`hpc_amp.report`: numbers from a program of the user's own. Standard library only."""

from __future__ import annotations

import json
import operator
import os
import time
from pathlib import Path
from typing import SupportsFloat

from hpc_amp.files import write_json


def report(
    step: int | None = None, *, total_steps: int | None = None, **values: SupportsFloat
) -> None:
    """Report numbers, such as `report(step, total_steps=1000, loss=loss, accuracy=0.9)`.

    The numbers become a line of `metrics.jsonl` in the run directory, which `hpc-amp status` and
    `sweep report` read. `step` and `total_steps` are the progress that `status` shows. Only rank 0
    writes. Outside of a job, the call does nothing. Tensors with one element are numbers, too.

    Raises TypeError or ValueError if a value is not a number, or for the name `time`.
    """
    step = None if step is None else operator.index(step)
    if "time" in values:
        raise ValueError("report: time is the time of the report; choose another name")
    numbers = {name: float(value) for name, value in values.items()}
    run_dir, rank = os.environ.get("HPC_AMP_RUN_DIR"), os.environ.get("RANK", "0")
    if not run_dir or rank != "0":
        return
    now = round(time.time(), 3)
    line = {"step": step, "time": now} if step is not None else {"time": now}
    with Path(run_dir, "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, **numbers}) + "\n")
    if step is None:
        return
    attempt = os.environ.get("HPC_AMP_ATTEMPT", "1")
    path = Path(run_dir, "attempts", attempt, "progress.json")
    write_json(path, {"time": now, "step": step, "total_steps": total_steps})
