"""Remove runs that have ended: by name, or those that are old."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError, to_type
from hpc_amp.files import read_json
from hpc_amp.jobs import rundir
from hpc_amp.jobs.attempts import newest_attempt
from hpc_amp.jobs.control import leftovers
from hpc_amp.jobs.events import FINAL, is_only_created, read_events
from hpc_amp.jobs.known import known_folders
from hpc_amp.jobs.status import RunStatus, left_of_moved, run_statuses

History = tuple[list[dict[str, Any]], Path | None]
"""The events of a run, and its newest attempt."""


@dataclass(frozen=True, slots=True)
class Removable:
    """A run that may be removed, and the bytes that it takes on disk."""

    run_dir: Path
    state: str
    size: int
    history: History
    """From before its state was determined. It shows whether the run has gone on since."""


def removable(run_dirs: Sequence[Path]) -> list[Removable]:
    """The given runs. Raises UsageError for one that has not ended, is a point of a campaign, or
    has weights that another run still needs."""
    found: list[tuple[RunStatus, str]] = []
    with_jobs = []
    histories = _histories(run_dirs)
    for status in run_statuses(run_dirs):
        run_dir = Path(status.run_dir)
        state = status.state
        campaign = _campaign_of(run_dir)
        if campaign is not None:
            raise UsageError(f"{run_dir} is a point of {campaign}", hint="remove the whole folder")
        place = rundir.origin(run_dir, read_json(run_dir / "job.json"))
        if rundir.is_copy(place):
            state = "copy"
        elif place is not None:
            moved = left_of_moved(status)
            if moved is not None:
                raise UsageError(f"{run_dir} was moved, and {moved}", hint="wait for its end")
        elif state not in FINAL and not is_only_created(run_dir):
            raise UsageError(f"{run_dir} is {state}", hint=to_type("cancel", run_dir))
        else:
            with_jobs.append(status)
        found.append((status, state))
    for status, left in zip(with_jobs, leftovers(with_jobs), strict=True):
        if left.is_something:
            raise UsageError(f"{status.run_dir}: {left}", hint="try again when it has ended")
    for run_dir, user in _needed(run_dirs).items():
        raise UsageError(f"{user} needs files of {run_dir}", hint="remove that first")
    return [_removable(status, state, histories) for status, state in found]


def old_runs(
    runs_dir: Path, *, keep: int, older_than: int, names: Sequence[str] = ()
) -> list[Removable]:
    """The runs in `runs_dir` that have ended, except the newest `keep` of each name and those that
    changed within the last `older_than` seconds. Copies of runs, and runs of other users, are left
    out. `names`: only jobs of these names. Raises UsageError if there is no run of a name."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for run_dir in rundir.all_runs(runs_dir):
        if _is_foreign(run_dir):
            continue
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
    histories = _histories(chosen)
    ended = [status for status in run_statuses(chosen) if status.state in FINAL]
    gone = [
        status
        for status, left in zip(ended, leftovers(ended), strict=True)
        if not left.is_something
    ]
    needed = _needed([Path(status.run_dir) for status in gone])
    return [
        _removable(status, status.state, histories)
        for status in gone
        if Path(status.run_dir) not in needed
    ]


def _is_foreign(run_dir: Path) -> bool:
    """Whether a run belongs to another user, with whom this one shares the folder."""
    user = os.geteuid()
    return user != 0 and run_dir.stat().st_uid != user


def _needed(run_dirs: Sequence[Path]) -> dict[Path, Path]:
    """Those of the given runs whose files another run or a campaign still needs, such as its first
    weights; each with the one that needs it. A run that has finished needs nothing."""
    texts = {run_dir: json.dumps(str(run_dir))[1:-1] for run_dir in run_dirs}
    folders = {run_dir.parents[1] for run_dir in run_dirs} | set(known_folders())
    needed: dict[Path, Path] = {}
    for description in (path for folder in folders for path in _descriptions(folder)):
        user = description.parent
        if user in texts or [e["state"] for e in read_events(user)[-1:]] == ["finished"]:
            continue
        content = _read_by_job(description)
        for run_dir, text in texts.items():
            if f"{text}/" in content or f'{text}"' in content:
                needed.setdefault(run_dir, user)
    return needed


def _read_by_job(description: Path) -> str:
    """What the jobs of a file with settings may read: not where their settings are from, nor the
    folder from which their code was copied."""
    try:
        lines = [json.loads(line) for line in _lines(description)]
    except (OSError, ValueError):
        return ""  # it is being removed, or damaged
    for resolved in lines:
        for name in ("overrides", "origins"):
            resolved.pop(name, None)
        job = resolved.get("job")
        if isinstance(job, dict):
            job.pop("code", None)
    return json.dumps(lines)


def _lines(description: Path) -> list[str]:
    text = description.read_text()
    return text.splitlines() if description.suffix == ".jsonl" else [text]


def _descriptions(folder: Path) -> Iterator[Path]:
    """The files with the settings of runs, and of the points of campaigns."""
    yield from folder.glob("*/[0-9]*/job.json")
    yield from folder.glob("*/[0-9]*/jobs.jsonl")


def _campaign_of(run_dir: Path) -> Path | None:
    """The campaign that a run is a point of."""
    return next((one for one in run_dir.parents if (one / "campaign.json").is_file()), None)


def remove(
    runs: Sequence[Removable], runs_dir: Path, named: Sequence[Path] = ()
) -> list[Removable]:
    """Remove runs, and the symbolic links to them in `runs_dir` and among the paths `named`. A file
    `latest` then names the newest run that is left. Returns the runs that are kept because they
    have gone on since they were found, such as by `hpc-amp resume`. Raises UsageError for a run
    that cannot be removed; those before it are gone then."""
    kept = []
    found = (*named, *runs_dir.glob("*"), *runs_dir.glob("*/[0-9]*"))
    links = [path for path in found if os.path.islink(path)]
    for run in runs:
        folder = run.run_dir
        places = [folder, *(link for link in links if rundir.same_folder(link, folder))]
        linked_parent = any(rundir.same_folder(link, folder.parent) for link in links)
        doomed = folder.with_name(f".removed-{folder.name}")
        parents = {place.parent for place in places}
        with_latest = [one for one in parents if os.path.lexists(one / "latest")]
        if _history(folder) != run.history:
            kept.append(run)
            continue
        try:
            # It is renamed first, so that an error does not leave a part of a run under its name.
            folder.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            left = doomed if doomed.exists() else folder
            rundir.write_latest(folder.parent)
            raise UsageError(f"{left} cannot be removed: {rundir.why_not_written(error)}") from None
        for link in places[1:]:
            with contextlib.suppress(OSError):
                link.unlink()
        for parent in with_latest:
            rundir.write_latest(parent)
            if not (linked_parent and parent == folder.parent):
                with contextlib.suppress(OSError):  # other runs of the name are left
                    # Compiled networks (hpc_amp.train.compiling) serve these runs alone.
                    if os.listdir(parent) == [".compiled"]:
                        shutil.rmtree(parent / ".compiled")
                    parent.rmdir()
    return kept


def remove_remains(runs_dir: Path) -> None:
    """Remove what is left of runs whose removal failed half-way, such as files that a program still
    had open on NFS."""
    for remains in runs_dir.glob("*/.removed-*"):
        shutil.rmtree(remains, ignore_errors=True)


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder, as they take space on disk."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _removable(status: RunStatus, state: str, histories: dict[Path, History]) -> Removable:
    run_dir = Path(status.run_dir)
    return Removable(run_dir, state, size_of(run_dir), histories[run_dir])


def _histories(run_dirs: Sequence[Path]) -> dict[Path, History]:
    return {run_dir: _history(run_dir) for run_dir in run_dirs}


def _history(run_dir: Path) -> History:
    return read_events(run_dir), newest_attempt(run_dir)


def _changed(run_dir: Path) -> float:
    """When a run last recorded an event."""
    try:
        return (run_dir / "state.jsonl").stat().st_mtime
    except OSError:
        return run_dir.stat().st_mtime
