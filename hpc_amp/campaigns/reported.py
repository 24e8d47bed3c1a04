"""The measurements of a run of the user's own program: what it reports in `metrics.jsonl`.

A line is a report (`hpc_amp.report`). Of these keys, `global_batch` or `samples_per_second` is
needed:

    step                int, optional: the number of steps so far; by default, reports are counted
    time                seconds since the epoch, of the report
    global_batch        samples of all ranks in a step. The duration of a step is the time between
                        two reports, divided by the number of steps between them
    samples_per_second  the throughput of all ranks, as the program has measured it

Only rank 0 reports, so its steps stand for those of all ranks.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.timing import RankTiming, RunTiming
from hpc_amp.files import read_json

BATCH, RATE = "global_batch", "samples_per_second"
"""The names of the numbers that tell the throughput."""
SILENT = "it reported no throughput"
"""Why a run of a program that reports nothing is not measured."""
HOW = """\
add to the program, so that it can be measured (docs/own-programs.md):
  from hpc_amp import report
  for step, batch in enumerate(batches, start=1):  # your loop; at the end of each step:
      report(step, global_batch=len(batch) * world_size)"""
NOT_REPORTED = "not reported"
"""The value of facts that the program does not report."""


@dataclass(frozen=True, slots=True)
class _Report:
    step: int
    time: float
    value: float
    """The global batch, or the samples per second."""


def read_reported(run_dir: Path, options: Mapping[str, Any]) -> tuple[RunTiming, str]:
    """The measurements of a run, and why there are none, if there are none. `options` are those of
    the campaign: `warmup`, and `steps` and `seconds`, which may be None."""
    lines = list(_lines(run_dir / "metrics.jsonl"))
    by_batch = any(BATCH in line for line in lines)
    reports = _newest(_reports(lines, BATCH if by_batch else RATE))
    if not reports:
        return RunTiming(), SILENT
    durations = _durations(reports, int(options["warmup"]), by_batch=by_batch)
    batch = Counter(batch for _, batch, _ in durations).most_common(1)[0][0] if durations else 1
    chosen = _chosen(
        [(seconds, steps) for seconds, its_batch, steps in durations if its_batch == batch],
        options.get("steps"), options.get("seconds"),
    )  # fmt: skip
    if not chosen:
        done = reports[-1].step
        return RunTiming(), (
            f"it reported {done} steps, and {options['warmup']} of them are the warm-up: let the "
            "program make more steps, or give a smaller --warmup"
        )
    return RunTiming((_rank(run_dir, batch, by_batch, tuple(chosen), options),)), ""


def expect_reports(workdir: Path, command: Sequence[str] | None) -> str | None:
    """A remark if a Python program seems to report nothing, before it is run on many nodes. None if
    it does, or cannot be read."""
    script = next((word for word in command or () if word.endswith(".py")), None)
    if script is None:
        return None
    try:
        text = (workdir / script).read_bytes()
    except OSError:
        return None
    if b"hpc_amp" in text or b"metrics.jsonl" in text:
        return None
    return f"{script} does not import hpc_amp. If none of its modules does, {HOW}"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError:
        return
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue  # cut off by the end of the program
        if isinstance(content, dict):
            yield content


def _reports(lines: list[dict[str, Any]], name: str) -> list[_Report]:
    """The reports with a usable number of this name."""
    found: list[_Report] = []
    for line in lines:
        step, moment, value = (
            line.get("step"),
            _positive(line.get("time")),
            _positive(line.get(name)),
        )
        if moment is None or value is None:
            continue
        if type(step) is not int:
            step = found[-1].step + 1 if found else 1
        found.append(_Report(step, moment, value))
    return found


def _newest(reports: list[_Report]) -> list[_Report]:
    """The reports after the last time that the steps began anew: those of the newest attempt."""
    begin = 0
    for index, (before, after) in enumerate(pairwise(reports)):
        if after.step < before.step:
            begin = index + 1
    return reports[begin:]


def _durations(
    reports: list[_Report], warmup: int, *, by_batch: bool
) -> list[tuple[float, int, int]]:
    """Seconds per step, batch, and number of steps of each interval between two reports after the
    warm-up. If the batch is not known, it counts as 1, and a step is the time of one sample."""
    if len(reports) < 2:
        return []
    # The number of steps before the first interval, which may have begun at a checkpoint.
    base = 2 * reports[0].step - reports[1].step
    found = []
    for before, after in pairwise(reports):
        steps = after.step - before.step
        if before.step - base < warmup or steps < 1 or after.time <= before.time:
            continue
        if by_batch:
            found.append(((after.time - before.time) / steps, round(after.value), steps))
        else:
            found.append((1 / after.value, 1, steps))
    return found


def _chosen(
    durations: list[tuple[float, int]], most_steps: int | None, most_seconds: float | None
) -> list[float]:
    """The durations of the first `most_steps` steps, or of `most_seconds`."""
    chosen: list[float] = []
    steps, seconds = 0, 0.0
    for duration, count in durations:
        if most_steps is not None and steps >= most_steps:
            break
        if most_seconds is not None and seconds >= most_seconds:
            break
        chosen.append(duration)
        steps += count
        seconds += duration * count
    return chosen


def _rank(
    run_dir: Path, batch: int, by_batch: bool, steps: tuple[float, ...], options: Mapping[str, Any]
) -> RankTiming:
    summary = read_json(run_dir / "summary.json")
    resources = read_json(run_dir / "job.json")["job"]["job"]
    attempts = sorted((run_dir / "attempts").glob("[0-9]*/program.json"))
    program = read_json(attempts[-1]) if attempts else {}
    facts = {
        "host": program.get("host") or NOT_REPORTED,
        "device": program.get("device") or NOT_REPORTED,
        "torch": program.get("torch") or NOT_REPORTED,
    }
    return RankTiming(
        rank=0,
        world_size=summary["world_size"],
        nodes=summary["nodes"],
        gpus_per_node=resources["gpus_per_node"],
        **facts,
        precision=NOT_REPORTED,
        data=NOT_REPORTED,
        batch_size=batch,
        gradient_bytes=0,
        warmup_steps=int(options["warmup"]),
        steps=steps,
        data_wait=(0.0,) * len(steps),
        communication=None,
        facts={**facts, "batch_size": batch if by_batch else None},
        reported=True,
    )


def _positive(value: object) -> float | None:
    """A value that is a finite number above 0; None for any other."""
    if type(value) in (int, float) and 0 < value < math.inf:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    return None
