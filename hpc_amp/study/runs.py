"""The runs of a study as they stand: measured, or why not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_amp.campaigns.timing import (
    AllReduceTiming,
    DamagedTiming,
    RankTiming,
    read_allreduce,
    read_rank,
)
from hpc_amp.jobs.status import RunStatus, run_statuses
from hpc_amp.study.folder import PlannedRun, Study

_RANK_FILE = re.compile(r"rank-\d{5,9}\.json")


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study.

    `state` is measured (all ranks), partial (some ranks), unsubmitted, gone (its run directory does
    not exist), waiting (for its turn in a job that it shares), or that of a run that has not
    finished or measured nothing, as in `hpc-amp status`. `reason` says more where there is more to
    say. `damaged` has a line for every file that cannot be used. `status` is that of its run
    directory, None where there is none.
    """

    planned: PlannedRun
    run_dir: Path | None
    state: str
    reason: str
    ranks: tuple[RankTiming, ...] = ()
    allreduce: AllReduceTiming | None = None
    damaged: tuple[str, ...] = ()
    status: RunStatus | None = None


def read_runs(study: Study) -> list[StudyRun]:
    """All runs of a study. The scheduler is asked once, for those that have not ended."""
    found = [_read_run(planned, study.run_dir(planned)) for planned in study.planned_runs()]
    there = {run.run_dir for run in found if run.run_dir is not None and run.state != "gone"}
    statuses = {status.run_dir: status for status in run_statuses(sorted(there))}
    return [_with_status(run, statuses.get(str(run.run_dir))) for run in found]


def _with_status(run: StudyRun, status: RunStatus | None) -> StudyRun:
    """What a run measured counts once it has finished: one that was ended early leaves what it had
    by then, and that is not a measurement."""
    if status is None:
        return run
    if status.state == "finished" and run.ranks:
        return replace(run, status=status)
    state, reason = status.state, status.reason
    if state == "finished":
        reason = "it measured nothing"
    elif state == "running" and not status.attempt:
        state = "waiting"
    return replace(run, status=status, state=state, reason=reason, ranks=(), allreduce=None)


def distinct(runs: Iterable[StudyRun], key: str) -> list[str]:
    """The different values of a field of `RankTiming` over all ranks of runs, sorted."""
    return sorted({str(getattr(rank, key)) for run in runs for rank in run.ranks})


def _read_run(planned: PlannedRun, run_dir: Path | None) -> StudyRun:
    if run_dir is None:
        return StudyRun(planned, None, "unsubmitted", "")
    if not os.path.isfile(run_dir / "job.json"):
        return StudyRun(planned, run_dir, "gone", f"{run_dir} is not a run directory")
    best: StudyRun | None = None
    damaged: list[str] = []
    for attempt in _newest_first(run_dir / "attempts"):
        run = _read_attempt(planned, run_dir, attempt / "timing")
        damaged += run.damaged
        if run.state == "measured":
            return replace(run, damaged=tuple(damaged))
        if run.ranks and (best is None or len(run.ranks) > len(best.ranks)):
            best = run
    return replace(best or StudyRun(planned, run_dir, "silent", ""), damaged=tuple(damaged))


def _newest_first(attempts: Path) -> list[Path]:
    numbers = [int(name) for name in _names(attempts) if re.fullmatch(r"\d{1,9}", name)]
    return [attempts / str(number) for number in sorted(numbers, reverse=True)]


def _read_attempt(planned: PlannedRun, run_dir: Path, timing: Path) -> StudyRun:
    """What one attempt measured. Ranks that contradict the first one are damaged."""
    ranks: dict[int, RankTiming] = {}
    damaged: list[str] = []
    for name in sorted(name for name in _names(timing) if _RANK_FILE.fullmatch(name)):
        try:
            rank = read_rank(timing / name)
            _check(rank, name, next(iter(ranks.values()), rank))
            ranks[rank.rank] = rank
        except DamagedTiming as error:
            damaged.append(f"{timing / name}: {error}")
    allreduce = None
    if os.path.lexists(timing / "allreduce.json"):
        try:
            allreduce = read_allreduce(timing / "allreduce.json")
        except DamagedTiming as error:
            damaged.append(f"{timing / 'allreduce.json'}: {error}")
    world = next(iter(ranks.values())).world_size if ranks else 0
    complete = 0 < world == len(ranks)
    return StudyRun(
        planned,
        run_dir,
        "measured" if complete else "partial",
        "" if complete else f"{len(ranks)} of {world} ranks",
        tuple(ranks.values()),
        allreduce,
        tuple(damaged),
    )


def _check(rank: RankTiming, name: str, first: RankTiming) -> None:
    """Raises DamagedTiming unless a file is of the rank in its name and of the first one's run."""
    if int(name[len("rank-") : -len(".json")]) != rank.rank:
        raise DamagedTiming(f"it says that it is of rank {rank.rank}")
    for key in ("world_size", "nodes", "batch_size"):
        if getattr(rank, key) != getattr(first, key):
            raise DamagedTiming(
                f"{key} is {getattr(rank, key)}, and rank {first.rank} says {getattr(first, key)}"
            )


def _names(folder: Path) -> list[str]:
    """What lies in a folder that may not be there."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
