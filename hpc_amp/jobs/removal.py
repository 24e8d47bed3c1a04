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
from hpc_amp.jobs.attempts import read_json
from hpc_amp.jobs.control import leftovers
from hpc_amp.jobs.events import is_only_created
from hpc_amp.jobs.status import FINAL, RunStatus, left_of_moved, run_statuses


@dataclass(frozen=True, slots=True)
class Removable:
    """A run that may be removed, and the bytes that it takes on disk."""

    run_dir: Path
    state: str
    size: int


def removable(run_dirs: Sequence[Path]) -> list[Removable]:
    """The given runs. Raises UsageError for one that has not ended, or is a point of a campaign."""
    found = []
    for status in run_statuses(run_dirs):
        run_dir = Path(status.run_dir)
        campaign = _campaign_of(run_dir)
        if campaign is not None:
            raise UsageError(f"{run_dir} is a point of {campaign}", hint="remove the whole folder")
        place = rundir.origin(run_dir, rundir.read_resolved(run_dir))
        if rundir.is_copy(place):
            found.append(_removable(status, state="copy"))
            continue
        if place is not None:
            moved = left_of_moved(status)
            if moved is not None:
                raise UsageError(f"{run_dir} was moved, and {moved}", hint="wait for its end")
            found.append(_removable(status))
            continue
        if status.state not in FINAL and not is_only_created(run_dir):
            raise UsageError(f"{run_dir} is {status.state}", hint=f"hpc-amp cancel {run_dir}")
        left = leftovers(status)
        if left.is_something:
            raise UsageError(f"{run_dir}: {left}", hint="try again when it has ended")
        found.append(_removable(status))
    return found


def old_runs(
    runs_dir: Path, *, keep: int, older_than: int, names: Sequence[str] = ()
) -> list[Removable]:
    """The runs in `runs_dir` that have ended, except the newest `keep` of each name and those that
    changed within the last `older_than` seconds. Copies of runs are left out. `names`: only jobs of
    these names. Raises UsageError if there is no run of a name."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for run_dir in rundir.all_runs(runs_dir):
        # The folder may be elsewhere, with a link to it in `runs_dir`.
        resolved = read_json(run_dir / "job.json")
        if rundir.is_copy(rundir.origin(run_dir, resolved)):
            continue  # somebody keeps it
        job = resolved.get("job")
        name = job.get("name") if isinstance(job, dict) else None
        by_name[name or run_dir.parent.name].append(run_dir)
    unknown = next((name for name in names if name not in by_name), None)
    if unknown is not None:
        raise UsageError(f"there is no run of {unknown} in {runs_dir}")
    now = time.time()
    not_kept = [
        run_dir
        for name in names or by_name
        for run_dir in by_name[name][: max(0, len(by_name[name]) - keep)]
    ]
    chosen = [
        run_dir
        for run_dir in dict.fromkeys(not_kept)
        if now - _changed(run_dir) >= older_than and _campaign_of(run_dir) is None
    ]
    return [
        _removable(status)
        for status in run_statuses(chosen)
        if status.state in FINAL and not leftovers(status).is_something
    ]


def _campaign_of(run_dir: Path) -> Path | None:
    """The campaign that a run is a point of."""
    return next((one for one in run_dir.parents if (one / "campaign.json").is_file()), None)


def remove(runs: Sequence[Removable], runs_dir: Path, named: Sequence[Path] = ()) -> None:
    """Remove runs, and the symbolic links to them in `runs_dir` and among the paths `named`. A link
    `latest` then leads to the newest run that is left. Raises UsageError for a run that cannot be
    removed; those before it are gone then."""
    found = (*named, *runs_dir.glob("*"), *runs_dir.glob("*/[0-9]*"))
    links = [path for path in found if os.path.islink(path)]
    for run in runs:
        folder = run.run_dir
        places = [folder, *(link for link in links if rundir.same_folder(link, folder))]
        outdated = [
            place.parent / "latest"
            for place in places
            if rundir.same_folder(place.parent / "latest", folder)
        ]
        linked_parent = any(rundir.same_folder(link, folder.parent) for link in links)
        doomed = folder.with_name(f".removed-{folder.name}")
        try:
            # It is renamed first, so that an error does not leave a part of a run under its name.
            folder.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            left = doomed if doomed.exists() else folder
            raise UsageError(f"{left} cannot be removed: {error}") from None
        for link in places[1:]:
            with contextlib.suppress(OSError):
                link.unlink()
        for latest in outdated:
            _renew(latest, keep_folder=linked_parent and latest.parent == folder.parent)


def _renew(latest: Path, *, keep_folder: bool) -> None:
    """Let the link `latest` lead to the newest run beside it. If there is none, remove the link,
    and its folder if that is then empty and `keep_folder` is false."""
    others = sorted(path.parent for path in latest.parent.glob("[0-9]*/job.json"))
    with contextlib.suppress(OSError):
        if others:
            rundir.point_latest(others[-1])
            return
        latest.unlink(missing_ok=True)
        if not keep_folder:
            latest.parent.rmdir()


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder, as they take space on disk."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _removable(status: RunStatus, state: str | None = None) -> Removable:
    run_dir = Path(status.run_dir)
    return Removable(run_dir, state or status.state, size_of(run_dir))


def _changed(run_dir: Path) -> float:
    """When a run last recorded an event."""
    try:
        return (run_dir / "state.jsonl").stat().st_mtime
    except OSError:
        return run_dir.stat().st_mtime
