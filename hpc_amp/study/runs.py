"""The runs of a study, with their measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.timing import AllReduceTiming, RankTiming, RunTiming
from hpc_amp.study.folder import PlannedRun, Study
from hpc_amp.study.view import SCALE


@dataclass(frozen=True, slots=True)
class StudyRun:
    """A run of a curve. `state` and `reason` are those of its point. `damaged` has a line for
    every file that cannot be used."""

    planned: PlannedRun
    run_dir: Path | None
    state: str
    reason: str
    ranks: tuple[RankTiming, ...] = ()
    allreduce: AllReduceTiming | None = None
    damaged: tuple[str, ...] = ()


def read_runs(study: Study) -> list[StudyRun]:
    """Read all runs of a study. The scheduler is queried once, for runs that have not ended."""
    statuses = SCALE.statuses(study.campaign)
    runs = []
    for planned in study.planned_runs():
        status = statuses[study.point(planned)]
        timing = status.timing or RunTiming()
        run_dir = Path(status.run.run_dir) if status.run is not None else None
        runs.append(
            StudyRun(
                planned, run_dir, status.state, status.reason,
                timing.ranks, timing.allreduce, timing.damaged,
            )
        )  # fmt: skip
    return runs


def distinct(runs: Iterable[StudyRun], key: str) -> list[str]:
    """The different values of a field of `RankTiming` over all ranks of runs, sorted."""
    return sorted({str(getattr(rank, key)) for run in runs for rank in run.ranks})
