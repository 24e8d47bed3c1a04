"""What the runs of a benchmark measured, or why they did not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hpc_amp.bench.folder import Bench, PrecisionRun
from hpc_amp.campaigns import words
from hpc_amp.campaigns.timing import DamagedTiming, RankTiming, read_rank
from hpc_amp.errors import UsageError
from hpc_amp.jobs.status import FINAL, run_statuses
from hpc_amp.jobs.summary import read_summary


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `state` is that of `hpc-amp status`; measured where all ranks left their times,
    damaged where they did not, although it finished; or not begun, for good.

    `first` is the file of rank 0 as it is.
    """

    point: PrecisionRun
    run_dir: Path
    state: str
    reason: str
    ranks: tuple[RankTiming, ...] = ()
    first: dict[str, Any] | None = None
    peak_memory: int | None = None
    """Bytes, of the rank that needed most."""
    summary: dict[str, Any] | None = None

    @property
    def is_measured(self) -> bool:
        """Whether its times count."""
        return self.state == "measured"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.state in FINAL or self.state in ("measured", "damaged", "not begun")

    @property
    def metrics(self) -> dict[str, float]:
        """What its task measured in the last evaluation."""
        metrics = (self.summary or {}).get("metrics") or {}
        return {name: value for name, value in metrics.items() if type(value) in (int, float)}

    @property
    def step_seconds(self) -> float:
        """The median over all steps and ranks."""
        return median(second for rank in self.ranks for second in rank.steps)


def read_results(bench: Bench) -> list[Result]:
    """All points, in the order in which they run. The scheduler is asked about those that have not
    ended."""
    run_dirs = bench.run_dirs()
    statuses = run_statuses(run_dirs)
    found = []
    for point, run_dir, status in zip(bench.points, run_dirs, statuses, strict=True):
        if not run_dir.exists():
            found.append(Result(point, run_dir, "not begun", "it was not submitted"))
        elif status.state == "finished":
            found.append(_read(point, run_dir))
        elif status.state == "lost" and status.attempt == 0:
            found.append(Result(point, run_dir, "not begun", "the job of all runs has ended"))
        else:
            found.append(Result(point, run_dir, status.state, status.reason))
    return found


def unfinished(bench: Bench, results: Sequence[Result]) -> list[PrecisionRun]:
    """The points that are to be measured once more. Raises UsageError while some are under way:
    they would share the machine."""
    under_way = sum(not result.has_ended for result in results)
    if under_way:
        raise UsageError(
            f"{words.under_way(under_way, 'run')}",
            hint=f"wait, or hpc-amp bench cancel {bench.folder}",
        )
    return [result.point for result in results if not result.is_measured]


def _read(point: PrecisionRun, run_dir: Path) -> Result:
    """What a run that has finished left."""
    timing = _newest_timing(run_dir / "attempts")
    try:
        paths = sorted(timing.glob("rank-*.json"), key=lambda path: path.name)
        ranks = tuple(read_rank(path) for path in paths)
        if not ranks:
            raise DamagedTiming("it measured nothing")
        if len(ranks) != ranks[0].world_size:
            raise DamagedTiming(f"{len(ranks)} of {ranks[0].world_size} ranks left their times")
        contents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    except (DamagedTiming, OSError, ValueError) as error:
        return Result(point, run_dir, "damaged", str(error))
    peaks = [content.get("peak_memory_bytes") for content in contents]
    return Result(
        point, run_dir, "measured", "", ranks, contents[0],
        peak_memory=max((peak for peak in peaks if type(peak) is int), default=None),
        summary=read_summary(run_dir),
    )  # fmt: skip


def _newest_timing(attempts: Path) -> Path:
    try:
        numbers = [int(name) for name in os.listdir(attempts) if re.fullmatch(r"\d{1,9}", name)]
    except OSError:
        numbers = []
    return attempts / str(max(numbers, default=0)) / "timing"
