"""Which folders a list shows, and which run or campaign a name means."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.jobs.known import absent_folders, known_folders, remember
from hpc_amp.jobs.places import (
    CAMPAIGNS,
    DESCRIPTIONS,
    RUNS,
    find_run,
    is_campaign,
    is_run,
    newest_in,
    newest_named,
    remember_folder_of,
)

_USUAL = (str(RUNS), *CAMPAIGNS)
"""The default folders of runs and campaigns. Others are known after their first use."""
_CAMPAIGN = DESCRIPTIONS[1]


def folders_to_list(only: Path | None, *, everywhere: bool) -> tuple[list[Path], list[Path]]:
    """The folders of runs and campaigns to list; and those that belong to them but cannot be
    reached at present. That is `only`, if it is given; else the folders below the working
    directory; else, and if `everywhere`, all that are known."""
    if only is not None:
        remember_if_used(only)
        return [only], []
    here = _here()
    if here and not everywhere:
        return here, []
    known = known_folders()
    absent = absent_folders()
    if not known and not absent:
        _find_in_queues()
        known = known_folders()
    own = {folder.resolve() for folder in here}
    return [*here, *(folder for folder in known if folder not in own)], absent


def _here() -> list[Path]:
    """The folders of runs and campaigns below the working directory."""
    found = [folder for folder in map(Path, _USUAL) if remember_if_used(folder)]
    own = {folder.resolve() for folder in found}
    here = Path.cwd()
    return found + [one for one in known_folders() if here in one.parents and one not in own]


def remember_if_used(folder: Path) -> bool:
    """Record a folder if it has runs or campaigns, so that it is known if the record was lost.
    Returns whether it has."""
    found = any(True for name in DESCRIPTIONS for _ in folder.glob(f"*/[0-9]*/{name}"))
    if found:
        remember(folder)
    return found


def _find_in_queues() -> None:
    """Record the folders of runs whose jobs are in the queue: the state folder was lost, or is
    new."""
    from hpc_amp.errors import SchedulerError
    from hpc_amp.schedulers import configured

    for scheduler in configured():
        with contextlib.suppress(SchedulerError):  # it does not answer now
            for path in set(scheduler().queued().values()):
                for folder in (path, *path.parents):
                    if is_campaign(folder):
                        remember(folder.parents[1])
                    elif is_run(folder):
                        remember_folder_of(folder)


def find(target: str, runs_dir: Path) -> tuple[Path, bool]:
    """The folder of the run or campaign that `target` means, and whether it is a campaign. Of runs
    and campaigns with the same name, or in the folder of a name, the newest one is meant. Raises
    UsageError if there is none."""
    path = Path(target)
    named = newest_named(path, _CAMPAIGN)
    for folder in (path, *([named] if named else [])):
        if os.path.isfile(folder / _CAMPAIGN):  # False, too, for names that no file can have
            return folder.resolve(), True
    here = [Path(name) for name in _USUAL] if runs_dir == RUNS else [runs_dir]
    campaign = _campaign(here, target)
    if os.sep in target and (found := newest_in(path, _CAMPAIGN)) is not None:
        campaign = found.resolve()
    if campaign is None and runs_dir == RUNS and newest_in(runs_dir / target) is None:
        # Other folders may be on file servers that do not answer: they are looked at last.
        campaign = _campaign(known_folders(), target)
    try:
        run = find_run(target, runs_dir)
    except UsageError:
        if campaign is None:
            raise
        return campaign, True
    is_name = run.parent.name == path.name
    if campaign is not None and is_name and campaign.name > run.name:
        return campaign, True
    return run, False


def runs_of(target: str, runs_dir: Path) -> list[Path]:
    """The runs that a word of the command line means: one run, or the points of a campaign that
    have begun (see `find`). Raises UsageError if there are none."""
    folder, is_campaign = find(target, runs_dir)
    if not is_campaign:
        return [folder]
    found = sorted(path.parent for path in folder.glob("points/*/job.json"))
    if not found:
        raise UsageError(f"no point of {folder} has begun")
    return found


def _campaign(folders: Sequence[Path], name: str) -> Path | None:
    """The newest campaign of a name in some folders."""
    found = [one for folder in folders if (one := newest_in(folder / name, _CAMPAIGN))]
    return max(found, key=lambda one: one.name).resolve() if found else None
