"""The base class of views: the part of a campaign that differs between scale, sweep and bench."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpc_amp.campaigns.folder import DESCRIPTION, Campaign, read_campaign
from hpc_amp.campaigns.overview import status_to_plain
from hpc_amp.campaigns.record import read_dropped
from hpc_amp.campaigns.status import DROPPED, UNDER_WAY, PointStatus, point_statuses
from hpc_amp.errors import UsageError, to_type
from hpc_amp.jobs.known import known_folders, remember
from hpc_amp.jobs.places import newest_in, newest_named

_OLDER_DESCRIPTIONS = ("sweep.json", "study.json", "bench.json")


class View:
    """One way to use campaigns, such as `hpc-amp sweep`. A view plans campaigns and reports on
    them. Everything else is the same for all views: `hpc_amp.cli.campaigns` submits the campaign,
    and makes the commands `status`, `continue` and `cancel` of a view."""

    name: ClassVar[str]
    """The name of its command, which is recorded in the folders of its campaigns."""
    noun: ClassVar[str]
    """The word for one of its campaigns: sweep, study."""
    parent: ClassVar[str]
    """The default folder of its campaigns."""
    runs: ClassVar[str] = "point"
    """The word for one of its runs in messages."""
    resumes: ClassVar[bool] = True
    """Whether `continue` resumes an interrupted run. If not, it makes a new run: a measurement must
    not be interrupted."""
    done: ClassVar[str] = "finished"
    """The state of a run that `continue` does not submit again."""
    follows: ClassVar[bool] = False
    """Whether the command waits for the end of all runs, if they run on this machine."""
    ask_above: ClassVar[float | None] = None
    """The default of --ask-above, in node-hours. None: the command does not estimate the cost."""

    def refine(self, campaign: Campaign, statuses: Sequence[PointStatus]) -> list[PointStatus]:
        """The statuses with the view's own states, such as `measured` for a finished run whose
        ranks have written their times."""
        return list(statuses)

    def labels(self, campaign: Campaign) -> dict[str, dict[int, str]]:
        """Further columns of `status`: title -> number of a point -> text."""
        return {}

    def statuses(self, campaign: Campaign, only: int | None = None) -> list[PointStatus]:
        """The statuses of all points, or of the point `only`. A point that was left out and is not
        done is `dropped`."""
        dropped = read_dropped(campaign)
        return [
            replace(status, state=DROPPED, reason=dropped[status.index], timing=None)
            if status.index in dropped and self.is_open(status)
            else status
            for status in self.refine(campaign, point_statuses(campaign, only))
        ]

    def is_open(self, status: PointStatus) -> bool:
        """Whether a point is neither done, nor under way, nor dropped."""
        return status.state not in (self.done, DROPPED, *UNDER_WAY)

    def unfinished(self, statuses: Sequence[PointStatus]) -> list[int]:
        """The points that `continue` submits."""
        return [status.index for status in statuses if self.is_open(status)]

    def summary(self, campaign: Campaign, *, as_json: bool) -> str:
        """The text that a command prints after it has waited for the end of its runs."""
        if as_json:
            statuses = self.statuses(campaign)
            return json.dumps(status_to_plain(campaign, statuses, self.labels(campaign)), indent=1)
        return f"see: {to_type(self.name, 'report', campaign.folder)}"

    @property
    def parent_option(self) -> str:
        """The option that chooses another folder of campaigns."""
        return f"--{self.parent}-dir"

    def find(self, target: str, parent: Path) -> Campaign:
        """The campaign that `target` names: a folder, or the name of a job, whose newest campaign
        in `parent` is meant. Raises UsageError if there is none, or if it belongs to another view
        or an older version."""
        named = parent / target
        found = [Path(target), newest_named(Path(target), DESCRIPTION)]
        found += [newest_in(named, DESCRIPTION), named]
        for folder in found:
            # False, too, for names that no file can have
            if folder is not None and os.path.isfile(folder / DESCRIPTION):
                campaign = read_campaign(folder.resolve())
                if campaign.view != self.name:
                    raise UsageError(
                        f"{campaign.folder} was started by hpc-amp {campaign.view}",
                        hint=f"use hpc-amp {campaign.view}",
                    )
                remember(campaign.folder.parents[1])
                return campaign
        elsewhere = self._newest(folder / target for folder in known_folders())
        if elsewhere is not None:
            return elsewhere
        _refuse_older(target, named, self.noun)
        raise UsageError(
            f"there is no {self.noun} {target!r}: it is neither a folder nor a name in {parent}",
            hint=f"{self.parent_option} chooses another folder",
        )

    def newest(self, parent: Path) -> Campaign:
        """The campaign of this view that was started last: in `parent`, or if that has none, in the
        known folders. Raises UsageError if there is none."""
        for folders in ([parent], known_folders()):
            found = self._newest(one for folder in folders for one in folder.glob("[!.]*"))
            if found is not None:
                return found
        raise UsageError(f"there is no {self.noun} in {parent}", hint=f"name the {self.noun}")

    def _newest(self, named: Iterable[Path]) -> Campaign | None:
        """The newest campaign of this view in folders of names. A campaign that cannot be read is
        left out."""
        found = []
        for name in named:
            with contextlib.suppress(OSError, ValueError):  # no file can have such a name
                found += [path.parent for path in name.glob(f"[0-9]*/{DESCRIPTION}")]
        for folder in sorted(found, key=lambda path: path.name, reverse=True):
            try:
                campaign = read_campaign(folder.resolve())
            except UsageError:
                continue
            if campaign.view == self.name:
                return campaign
        return None


def _refuse_older(target: str, named: Path, noun: str) -> None:
    folders = [Path(target), named, *(named.glob("[0-9]*") if os.path.isdir(named) else ())]
    for folder in folders:
        for name in _OLDER_DESCRIPTIONS:
            if os.path.isfile(folder / name):
                raise UsageError(
                    f"{folder} was made by an older hpc-amp, and this one does not read {name}",
                    hint=f"use the older version, or start a new {noun}",
                )
