"""`hpc_amp.report`: numbers from a program of the user's own. Standard library only."""

from __future__ import annotations

import json
import operator
import os
import socket
import sys
import time
from pathlib import Path
from typing import SupportsFloat

from hpc_amp.files import write_json

_SPEED = ("global_batch", "samples_per_second")
_warned = False
"""Whether the user was told that a report is lost."""
_previous: tuple[int, float] | None = None
"""Step and time of the report before, if it had a step."""


def report(
    step: int | None = None,
    *,
    total_steps: int | None = None,
    global_batch: SupportsFloat | None = None,
    samples_per_second: SupportsFloat | None = None,
    **values: SupportsFloat,
) -> None:
    """Report numbers, such as `report(step, total_steps=1000, global_batch=256, loss=loss)`.

    The numbers become a line of `metrics.jsonl` in the run directory, which `hpc-amp status`,
    `sweep report`, `scale` and `bench` read. Only rank 0 writes. Outside of a job, the call does
    nothing. Tensors with one element are numbers, too, and their value is waited for.

    `step`, `total_steps`: the number of steps so far and at the end. `status` shows them.
    `global_batch`: the samples of all ranks in a step. With it, the time between two reports shows
    the throughput.
    `samples_per_second`: the throughput of all ranks, if the program measures it itself.

    A report that cannot be written, such as on a full disk, is lost, with a warning.

    Raises TypeError or ValueError if a value is not a number, or for the name `time`.
    """
    global _previous
    step = None if step is None else operator.index(step)
    if "time" in values:
        raise ValueError("report: time is the time of the report; choose another name")
    numbers = {name: _number(value) for name, value in values.items()}
    speed = {"global_batch": global_batch, "samples_per_second": samples_per_second}
    numbers |= {name: _number(value) for name, value in speed.items() if value is not None}
    run_dir, rank = os.environ.get("HPC_AMP_RUN_DIR"), os.environ.get("RANK", "0")
    if not run_dir or rank != "0":
        return
    now = round(time.time(), 6)
    if step is not None:
        if _previous is not None and "global_batch" in numbers:
            steps, seconds = step - _previous[0], now - _previous[1]
            if steps > 0 and seconds > 0:
                rate = round(numbers["global_batch"] * steps / seconds, 3)
                numbers.setdefault("samples_per_second", rate)
        _previous = step, now
    number = os.environ.get("HPC_AMP_ATTEMPT", "1")
    line: dict[str, object] = {"step": step} if step is not None else {}
    # The attempt is text, which is no curve for the readers of the file.
    line |= {"time": now, "attempt": number}
    try:
        _write(Path(run_dir), number, {**line, **numbers}, total_steps)
    except OSError as error:  # a full disk must not end the program
        _warn(error)


def _number(value: SupportsFloat) -> float:
    """A number, or a tensor with one element. torch warns if that still has its graph."""
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def _write(run_dir: Path, number: str, line: dict[str, object], total_steps: int | None) -> None:
    """Write a report of attempt `number`. Raises OSError."""
    with Path(run_dir, "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    attempt = Path(run_dir, "attempts", number)
    if attempt.is_dir() and not (attempt / "program.json").exists():
        write_json(attempt / "program.json", _facts())
    if "step" not in line:
        return
    progress = {"time": line["time"], "step": line["step"], "total_steps": total_steps}
    progress |= {name: line[name] for name in _SPEED if name in line}
    write_json(attempt / "progress.json", progress)


def _warn(error: OSError) -> None:
    """Say once that reports are lost."""
    global _warned
    if not _warned:
        _warned = True
        print(f"hpc_amp.report: a report is lost: {error}", file=sys.stderr, flush=True)


def _facts() -> dict[str, object]:
    """What the reports of `scale` and `bench` say about the machine. torch is asked only if the
    program has imported it and uses a GPU."""
    facts: dict[str, object] = {"host": socket.gethostname()}
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch"] = str(torch.__version__)
        if torch.cuda.is_initialized():
            facts["device"] = torch.cuda.get_device_name()
    return facts
