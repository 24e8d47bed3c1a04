"""Remove runs that have ended: by name, or those that are old."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.status import FINAL, RunStatus, run_statuses


@dataclass(frozen=True, slots=True)
class Removable:
    """A run that may be removed, and the bytes that it takes on disk."""

    run_dir: Path
    state: str
    size: int


def removable(run_dirs: Sequence[Path]) -> list[Removable]:
    """The given runs. Raises UsageError for one that has not ended, or is a point of a campaign."""
    for run_dir in run_dirs:
        campaign = next((one for one in run_dir.parents if (one / "campaign.json").is_file()), None)
        if campaign is not None:
            raise UsageError(f"{run_dir} is a point of {campaign}", hint="remove the whole folder")
    found = []
    for status in run_statuses(run_dirs):
        if status.state not in FINAL:
            raise UsageError(
                f"{status.run_dir} is {status.state}", hint=f"hpc-amp cancel {status.run_dir}"
            )
        found.append(_removable(status))
    return found


def old_runs(
    runs_dir: Path, *, keep: int, older_than: int, names: Sequence[str] = ()
) -> list[Removable]:
    """The runs in `runs_dir` that have ended, except the newest `keep` of each name and those that
    changed within the last `older_than` seconds. `names`: only jobs of these names."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for run_dir in rundir.all_runs(runs_dir):
        if not names or run_dir.parent.name in names:
            by_name[run_dir.parent.name].append(run_dir)
    now = time.time()
    chosen = [
        run_dir
        for runs in by_name.values()
        for run_dir in runs[: len(runs) - keep]
        if now - _changed(run_dir) >= older_than
    ]
    return [_removable(status) for status in run_statuses(chosen) if status.state in FINAL]


def remove(runs: Sequence[Removable]) -> None:
    """Remove runs, and let `latest` lead to the newest run that is left. Raises UsageError for a
    run that cannot be removed; those before it are gone then."""
    for run in runs:
        folder = run.run_dir
        latest = folder.parent / "latest"
        was_latest = rundir.same_folder(latest, folder)
        try:
            # First the file that makes it a run: what is left after an error is no half of a run.
            (folder / "job.json").unlink()
            shutil.rmtree(folder)
        except OSError as error:
            raise UsageError(f"{folder} cannot be removed: {error}") from None
        if not was_latest:
            continue
        left = sorted(path.parent for path in folder.parent.glob("[0-9]*/job.json"))
        with contextlib.suppress(OSError):
            if left:
                rundir.point_latest(left[-1])
            else:
                latest.unlink()
                folder.parent.rmdir()


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder, as they take space on disk."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _removable(status: RunStatus) -> Removable:
    run_dir = Path(status.run_dir)
    return Removable(run_dir, status.state, size_of(run_dir))


def _changed(run_dir: Path) -> float:
    """When a run last recorded an event."""
    try:
        return (run_dir / "state.jsonl").stat().st_mtime
    except OSError:
        return run_dir.stat().st_mtime
