"""Send the curves of runs to a tracker, from their `metrics.jsonl`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.trackers import run
from hpc_amp.trackers.registry import TRACKERS, missing
from hpc_amp.trackers.secret import without_passwords


@dataclass(frozen=True, slots=True)
class Exported:
    """What was sent of a run."""

    run_dir: Path
    points: int
    """How many values were new."""
    where: str
    """Where the curves can be seen."""


def export(run_dir: Path, name: str) -> Exported:
    """Send what the tracker `name` has not got of a run yet. Raises UsageError if the tracker
    cannot be used here, and HpcAmpError if it fails."""
    problem = missing(name)
    if problem is not None:
        raise UsageError(problem)
    if not (run_dir / "metrics.jsonl").is_file():
        return Exported(run_dir, 0, "nowhere: there is no metrics.jsonl yet")
    try:
        tracker = TRACKERS.get(name)(run_dir, 0)
        tracker.configuration(run.configuration(run_dir))
        points = tracker.catch_up()
        outcome = run.outcome(run_dir)
        if outcome is not None:
            tracker.end(outcome)
        tracker.close()
    except Exception as error:  # of packages that do not document what they raise
        text = without_passwords(" ".join(str(error).split()))
        raise HpcAmpError(f"{run_dir}: {name}: {type(error).__name__}: {text}") from error
    return Exported(run_dir, points, tracker.where)
