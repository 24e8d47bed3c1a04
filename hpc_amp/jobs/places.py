"""Find run directories: by path, by name, by job id, or the newest one.

A name or a job id is searched for in one folder of runs, then in the other folders that are known
(`jobs.known`). Runs and campaigns have folders of the same form: <folder>/<name>/<id>.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError
from hpc_amp.files import read_json, write_atomically
from hpc_amp.jobs.events import is_only_created, own_events
from hpc_amp.jobs.known import known_folders, remember

RUNS = Path("runs")
"""The default folder of runs."""
LATEST = "latest"
"""The file with the id of the newest run of a name. It is for people and their scripts; hpc-amp
itself compares the ids. It is no link, because TensorBoard would show the newest run twice."""
DESCRIPTIONS = ("job.json", "campaign.json")
"""The files that make a folder one of a run, or of a campaign."""


def origin(folder: Path, resolved: Mapping[str, Any]) -> Path | None:
    """The folder in which a run was submitted, if `folder` is not the same folder by another path;
    else None. `resolved` is the content of the folder's `job.json`. The run was copied or moved
    then, and its script and its job still use the original folder."""
    recorded = resolved.get("run_dir")
    if not isinstance(recorded, str):
        return None
    return None if same_folder(folder, Path(recorded)) else Path(recorded)


def has_no_job(run_dir: Path) -> bool:
    """Whether no job will change a run, so that waiting for its end makes no sense: its user has
    not submitted it yet, or it was copied or moved."""
    elsewhere = origin(run_dir, read_json(run_dir / "job.json")) is not None
    return elsewhere or is_only_created(run_dir)


def is_copy(origin: Path | None) -> bool:
    """Whether a run or campaign with this `origin` is a copy. False: it was moved, or is where it
    was submitted."""
    return origin is not None and os.path.exists(origin)  # unlike Path.exists, it never fails


def same_folder(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same folder, also by symbolic links and bind mounts."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False  # one of them does not exist on this machine, or is no path


def find_run(target: str, runs_dir: Path) -> Path:
    """Find a run directory. `target` is a run directory, the name of a job (its newest run), the
    folder of a name, or a job id. Names and ids are searched for in `runs_dir`, and if that is the
    default, then in the known folders. Raises UsageError if there is no such run."""
    path = Path(target)
    found = path if is_run(path) else newest_named(path)
    if found is None and os.sep in target:
        found = newest_in(path)
    if found is not None:
        remember(found.resolve().parents[1])
        return found.resolve()
    elsewhere = _elsewhere(runs_dir)
    for folders in ([runs_dir], elsewhere):
        named = [newest_in(folder / target) for folder in folders]
        named += [folder / target for folder in folders if is_run(folder / target)]
        runs = sorted((run for run in named if run is not None), key=lambda run: run.name)
        if runs:
            return runs[-1].resolve()
    for folder in (runs_dir, *elsewhere):
        found = _with_job(target, all_runs(folder))
        if found is not None:
            return found
    raise UsageError(
        f"there is no run {target!r}: neither a run directory, nor a name or job id in {runs_dir}",
        hint="`hpc-amp status --all` lists the runs; --runs-dir looks elsewhere",
    )


def _with_job(job_id: str, runs: Iterable[Path]) -> Path | None:
    """The run with a job. A copy of a run has the events of the original, whose job this is."""
    copies = []
    for folder in runs:
        if any(event.get("job_id") == job_id for event in own_events(folder)):
            if origin(folder, read_json(folder / "job.json")) is None:
                return folder
            copies.append(folder)
    return copies[0] if copies else None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory. False, too, for names that no file can have."""
    return os.path.isfile(folder / "job.json")


def newest_named(path: Path, description: str = "job.json") -> Path | None:
    """The newest run of a name, if `path` is `<name>/latest` and not a folder itself; else None."""
    if path.name != LATEST or os.path.isdir(path):
        return None
    return newest_in(path.parent, description)


def follow_latest(path: Path) -> Path:
    """Replace `<name>/latest` at the beginning of a path, or as all of it, by the newest run or
    campaign of the name."""
    for folder in (path, *path.parents):
        if folder.name == LATEST and os.path.isfile(folder):
            found = [newest_in(folder.parent, description) for description in DESCRIPTIONS]
            newest = max((one for one in found if one is not None), default=None)
            return path if newest is None else newest / path.relative_to(folder)
    return path


def newest_in(folder: Path, description: str = "job.json") -> Path | None:
    """The newest run in the folder of a name. `description` is the file that a run has."""
    found = [name for name in _ids(folder) if os.path.isfile(folder / name / description)]
    return folder / max(found) if found else None


def _ids(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name[:1].isdecimal()]
    except (OSError, ValueError):
        return []


def newest_run(runs_dir: Path) -> Path:
    """The run that was submitted last: in `runs_dir`, or if that is the default and
    has none, in the known folders. Raises UsageError if there is none."""
    found = all_runs(runs_dir)
    if not found:
        found = [run for folder in _elsewhere(runs_dir) for run in all_runs(folder)]
    if not found:
        raise UsageError(f"there are no runs in {runs_dir}", hint="--runs-dir looks elsewhere")
    return max(found, key=lambda run: (run.name, run.parent.name))


def _elsewhere(runs_dir: Path) -> list[Path]:
    """The other folders in which a run is searched for: none, if the user has named one."""
    return known_folders() if runs_dir == RUNS else []


def all_runs(runs_dir: Path) -> list[Path]:
    """Every run directory below `runs_dir`, oldest first. A run may be on another disk, with a link
    in its place: it has the time of the link's name."""
    found: dict[Path, Path] = {}
    for path in runs_dir.glob("*/[0-9]*/job.json"):
        found.setdefault(path.parent.resolve(), path.parent)
    return sorted(found, key=lambda run: (found[run].name, found[run].parent.name))


def write_latest(folder: Path) -> None:
    """Write the id of the newest run in the folder of a name to the file `latest`, and remove the
    file if no run is left. If that is not possible, it stays as it is: this is no reason for a
    submission to fail."""
    newest = max(
        (
            name
            for name in _ids(folder)
            if any((folder / name / one).exists() for one in DESCRIPTIONS)
        ),
        default=None,
    )
    with contextlib.suppress(OSError):
        if newest is None:
            (folder / LATEST).unlink()
        else:
            write_atomically(folder / LATEST, f"{newest}\n")
