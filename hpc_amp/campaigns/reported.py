"""The measurements of a run of the user's own program: what it reports in `metrics.jsonl`.

A line is a report (`hpc_amp.report`). Of these keys, `global_batch` or `samples_per_second` is
needed:

    step                int, optional: the number of steps so far; by default, reports are counted
    time                seconds since the epoch, of the report
    global_batch        samples of all ranks in a step. The duration of a step is the time between
                        two reports, divided by the number of steps between them
    samples_per_second  the throughput of all ranks, as the program has measured it
    attempt             text, optional: the attempt that reports. Steps are not counted from one
                        attempt to the next

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
    attempt: str


@dataclass(frozen=True, slots=True)
class _Interval:
    """The time between two reports."""

    duration: float
    """Seconds of a step, or of a sample if the batch is not known."""
    batch: int
    """1 if it is not known."""
    steps: int
    seconds: float


def read_reported(run_dir: Path, options: Mapping[str, Any]) -> tuple[RunTiming, str]:
    """The measurements of a run, and why there are none, if there are none. `options` are those of
    the campaign: `warmup`, and `steps` and `seconds`, which may be None."""
    lines = list(_lines(run_dir / "metrics.jsonl"))
    by_batch = any(BATCH in line for line in lines)
    reports = _newest(_reports(lines, BATCH if by_batch else RATE))
    if not reports:
        return RunTiming(), SILENT
    facts = read_json(run_dir / "summary.json")
    if not {"world_size", "nodes"} <= facts.keys():
        return RunTiming(), "its summary.json does not say on how many ranks and nodes it ran"
    intervals = _intervals(reports, int(options["warmup"]), by_batch=by_batch)
    batch = Counter(one.batch for one in intervals).most_common(1)[0][0] if intervals else 1
    chosen = _chosen(
        [one for one in intervals if one.batch == batch],
        options.get("steps"), options.get("seconds"),
    )  # fmt: skip
    if not chosen:
        done = reports[-1].step
        return RunTiming(), (
            f"it reported {done} steps, and {options['warmup']} of them are the warm-up: let the "
            "program make more steps, or give a smaller --warmup"
        )
    return RunTiming((_rank(run_dir, facts, batch, by_batch, chosen, options),)), ""


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
        attempt = line.get("attempt")
        attempt = attempt if isinstance(attempt, str) else ""
        found.append(_Report(step, moment, value, attempt))
    return found


def _newest(reports: list[_Report]) -> list[_Report]:
    """The reports of the newest attempt: those after the last time that the attempt changed or the
    steps began anew."""
    begin = 0
    for index, (before, after) in enumerate(pairwise(reports)):
        if after.step < before.step or after.attempt != before.attempt:
            begin = index + 1
    return reports[begin:]


def _intervals(reports: list[_Report], warmup: int, *, by_batch: bool) -> list[_Interval]:
    """The intervals between two reports that begin after the warm-up."""
    if len(reports) < 2:
        return []
    # The number of steps before the attempt, which may have begun at a checkpoint. If the first
    # report is as far from 0 as the second one from it, it is that of the first steps of a run.
    # Else nothing shows how many steps the first report is about: it counts as one.
    first, second = reports[0].step, reports[1].step
    base = 0 if first == second - first else first - 1
    found = []
    for before, after in pairwise(reports):
        steps, seconds = after.step - before.step, after.time - before.time
        if before.step - base < warmup or steps < 1 or seconds <= 0:
            continue
        if by_batch:
            found.append(_Interval(seconds / steps, round(after.value), steps, seconds))
        else:
            found.append(_Interval(1 / after.value, 1, steps, seconds))
    return found


def _chosen(
    intervals: list[_Interval], most_steps: int | None, most_seconds: float | None
) -> list[_Interval]:
    """The first intervals, until they have `most_steps` steps or take `most_seconds`."""
    chosen: list[_Interval] = []
    steps, seconds = 0, 0.0
    for interval in intervals:
        if most_steps is not None and steps >= most_steps:
            break
        if most_seconds is not None and seconds >= most_seconds:
            break
        chosen.append(interval)
        steps += interval.steps
        seconds += interval.seconds
    return chosen


def _rank(
    run_dir: Path, summary: Mapping[str, Any], batch: int, by_batch: bool,
    intervals: list[_Interval], options: Mapping[str, Any],
) -> RankTiming:  # fmt: skip
    resources = read_json(run_dir / "job.json")["job"]["job"]
    steps = tuple(interval.duration for interval in intervals)
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
        counted=sum(interval.steps for interval in intervals),
    )


def _positive(value: object) -> float | None:
    """A value that is a finite number above 0; None for any other."""
    if type(value) in (int, float) and 0 < value < math.inf:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    return None
