"""The part of a campaign that each way to use one has for itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from hpc_amp.campaigns.folder import DESCRIPTION, Campaign, read_campaign
from hpc_amp.campaigns.overview import status_to_plain
from hpc_amp.campaigns.status import UNDER_WAY, PointStatus, point_statuses
from hpc_amp.errors import UsageError

_OLDER_DESCRIPTIONS = ("sweep.json", "study.json", "bench.json")


class View:
    """One way to use campaigns, such as `hpc-amp sweep`. It starts campaigns (`start.start`) and
    reports on them; everything between is the same for all views. `hpc_amp.cli.campaigns` makes the
    commands `status`, `continue` and `cancel` of a view."""

    name: ClassVar[str]
    """Its command, which is noted in the folders of its campaigns."""
    noun: ClassVar[str]
    """What one of its campaigns is called: a sweep, a study."""
    parent: ClassVar[str]
    """The folder of its campaigns, unless the user names another one."""
    runs: ClassVar[str] = "point"
    """What one of the runs is called in messages."""
    resumes: ClassVar[bool] = True
    """Whether `continue` resumes a run that was interrupted. If not, it makes a new run, since half
    a measurement is not a measurement."""
    done: ClassVar[str] = "finished"
    """The state of a run that `continue` leaves as it is."""
    follows: ClassVar[bool] = False
    """Whether the command waits for a job of all runs on this machine."""
    ask_above: ClassVar[float | None] = None
    """Node-hours above which a command asks before it submits, unless the user says otherwise. None
    for commands that do not estimate them."""

    def refine(self, campaign: Campaign, statuses: Sequence[PointStatus]) -> list[PointStatus]:
        """The statuses with states of the view's own, such as `measured` for a finished run that
        left what it measured."""
        return list(statuses)

    def labels(self, campaign: Campaign) -> dict[str, dict[int, str]]:
        """Further columns of `status`, by their titles: a text for the number of each point."""
        return {}

    def statuses(self, campaign: Campaign, only: int | None = None) -> list[PointStatus]:
        """Where all points stand, or that one only. The scheduler is asked once."""
        return self.refine(campaign, point_statuses(campaign, only))

    def unfinished(self, statuses: Sequence[PointStatus]) -> list[int]:
        """The points that `continue` submits: those that are neither done nor under way."""
        return [s.index for s in statuses if s.state != self.done and s.state not in UNDER_WAY]

    def summary(self, campaign: Campaign, *, as_json: bool) -> str:
        """What a command prints when the runs have ended that it waited for."""
        if as_json:
            statuses = self.statuses(campaign)
            return json.dumps(status_to_plain(campaign, statuses, self.labels(campaign)), indent=1)
        return f"see: hpc-amp {self.name} report {campaign.folder}"

    @property
    def parent_option(self) -> str:
        """The option that names another folder of campaigns."""
        return f"--{self.parent}-dir"

    def find(self, target: str, parent: Path) -> Campaign:
        """The campaign that `target` names: its folder, or a name (its newest campaign in
        `parent`). Raises UsageError where there is none, or where it is one of another view or of
        an older version."""
        named = parent / target
        newest = sorted(named.glob(f"[0-9]*/{DESCRIPTION}"))[-1:] if os.path.isdir(named) else []
        for folder in (Path(target), named / "latest", *(path.parent for path in newest), named):
            if os.path.isfile(folder / DESCRIPTION):  # False, too, for names that no file can have
                campaign = read_campaign(folder.resolve())
                if campaign.view != self.name:
                    raise UsageError(
                        f"{campaign.folder} was started by hpc-amp {campaign.view}",
                        hint=f"use hpc-amp {campaign.view}",
                    )
                return campaign
        _refuse_older(target, named, self.noun)
        raise UsageError(
            f"there is no {self.noun} {target!r}: neither its folder, nor a name in {parent}",
            hint=f"{self.parent_option} looks elsewhere",
        )


def _refuse_older(target: str, named: Path, noun: str) -> None:
    folders = [Path(target), named, *(named.glob("[0-9]*") if os.path.isdir(named) else ())]
    for folder in folders:
        for name in _OLDER_DESCRIPTIONS:
            if os.path.isfile(folder / name):
                raise UsageError(
                    f"{folder} was made by an older hpc-amp, and this one does not read {name}",
                    hint=f"use the older one for it, or start a new {noun}",
                )
