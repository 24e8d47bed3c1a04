"""Find run directories: by path, by name, by job id, or the newest one.

A name or a job id is searched for in one folder of runs, then in the other folders that are known
(`jobs.known`). Runs and campaigns have folders of the same form: <folder>/<name>/<id>.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError
from hpc_amp.files import read_json, write_atomically
from hpc_amp.jobs.events import is_only_created, own_events
from hpc_amp.jobs.known import known_folders, remember

RUNS = Path("runs")
"""The default folder of runs."""
CAMPAIGNS = ("sweeps", "studies", "benches")
"""The default folders of campaigns."""
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
    path = follow_latest(Path(target))
    found = path if is_run(path) else newest_named(path)
    if found is None and os.sep in target:
        found = newest_in(path)
    if found is not None:
        remember_folder_of(found.resolve())
        return found.resolve()
    found = _named(target, [runs_dir]) or _with_job(target, [runs_dir])
    if found is None:
        # Other folders may be on file servers that do not answer: they are looked at last.
        elsewhere = _elsewhere(runs_dir)
        found = _named(target, elsewhere) or _with_job(target, elsewhere)
    if found is not None:
        return found
    campaigns = [path, *(newest_in(Path(one, target), DESCRIPTIONS[1]) for one in CAMPAIGNS)]
    for campaign in campaigns:
        if campaign is not None and is_campaign(campaign):
            view = read_json(campaign / DESCRIPTIONS[1]).get("view", "sweep")
            raise UsageError(
                f"{target} is a campaign (hpc-amp {view}), and no run",
                hint=f"name one of its runs, such as {campaign}/points/0000; hpc-amp {view} --help "
                "lists the commands for all of them",
            )
    raise UsageError(
        f"there is no run {target!r}: neither a run directory, nor a name or job id in {runs_dir}",
        hint="`hpc-amp status --all` lists the runs; --runs-dir looks elsewhere",
    )


def _named(name: str, folders: Sequence[Path]) -> Path | None:
    """The newest run of a name in folders of runs."""
    named = [newest_in(folder / name) for folder in folders]
    named += [folder / name for folder in folders if is_run(folder / name)]
    runs = sorted((run for run in named if run is not None), key=lambda run: run.name)
    return runs[-1].resolve() if runs else None


def _with_job(job_id: str, folders: Sequence[Path]) -> Path | None:
    """The run with a job. A copy of a run has the events of the original, whose job this is."""
    copies = []
    for run in (run for folder in folders for run in all_runs(folder)):
        if any(event.get("job_id") == job_id for event in own_events(run)):
            if origin(run, read_json(run / "job.json")) is None:
                return run
            copies.append(run)
    return copies[0] if copies else None


def remember_folder_of(run_dir: Path) -> None:
    """Record the folder of runs that a run is in, unless the run is elsewhere, such as a copy or a
    point of a campaign."""
    runs = run_dir.parents[1] if len(run_dir.parents) > 1 else None
    job = read_json(run_dir / "job.json").get("job")
    name = job.get("name") if isinstance(job, dict) else None
    if runs is not None and run_dir.parent.name == name and not is_campaign(runs):
        remember(runs)


def is_campaign(folder: Path) -> bool:
    """Whether a folder is that of a campaign."""
    return os.path.isfile(folder / "campaign.json")


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
    """The newest run in the folder of a name, unless it is a copy. `description` is the file that a
    run has. Of runs of the same second, the one is meant whose description is newer."""
    for _, names in itertools.groupby(sorted(_ids(folder), reverse=True), key=_second):
        runs = [folder / name for name in names if os.path.isfile(folder / name / description)]
        for run in sorted(runs, key=lambda run: os.stat(run / description).st_mtime_ns)[::-1]:
            if not is_copy(origin(run, read_json(run / description))):
                return run
    return None


def _second(run_id: str) -> str:
    """The time in an id, such as 20261127-223455."""
    return run_id[:15]


def _ids(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name[:1].isdecimal()]
    except (OSError, ValueError):
        return []


def newest_run(runs_dir: Path) -> Path:
    """The run that was submitted last: in `runs_dir`, or if that is the default and
    has none, in the known folders. Raises UsageError if there is none."""
    found = _newest([runs_dir]) or _newest(_elsewhere(runs_dir))
    if found is None:
        raise UsageError(f"there are no runs in {runs_dir}", hint="--runs-dir looks elsewhere")
    return found


def _newest(folders: Sequence[Path]) -> Path | None:
    """The newest run in folders of runs that is not a copy."""
    found = [run for folder in folders for run in all_runs(folder)]
    for run in sorted(found, key=lambda run: (run.name, run.parent.name), reverse=True):
        if not is_copy(origin(run, read_json(run / "job.json"))):
            return run
    return None


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
    file if no run is left. A file of this name that somebody else wrote stays as it is, and so does
    one that cannot be written: this is no reason for a submission to fail."""
    if not _is_ours(folder / LATEST):
        return
    with contextlib.suppress(OSError):
        found = [run for one in DESCRIPTIONS if (run := newest_in(folder, one)) is not None]
        newest = max(found, key=lambda run: _second(run.name), default=None)
        if newest is None:
            (folder / LATEST).unlink()
        else:
            write_atomically(folder / LATEST, f"{newest.name}\n")


def _is_ours(latest: Path) -> bool:
    """Whether a file `latest` does not exist, is a link of an older version, or contains an id."""
    if latest.is_symlink() or not os.path.lexists(latest):
        return True
    try:
        content = latest.read_text()
    except (OSError, UnicodeError):
        return False
    return re.fullmatch(r"\d{8}-\d{6}-[a-z]{4}\n", content) is not None
