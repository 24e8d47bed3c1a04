"""A scaling study: a campaign whose points are numbers of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.errors import UsageError

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
_MOST_NODES = 10**6


@dataclass(frozen=True, slots=True, order=True)
class PlannedRun:
    """A planned run of a curve. `repeat` counts from 1. If the strong and the weak run on a number
    of nodes have the same settings, they share one run of the campaign."""

    kind: Kind
    nodes: int
    repeat: int

    @property
    def label(self) -> str:
        """`strong-n0004-r02`."""
        return f"{self.kind}-n{self.nodes:04d}-r{self.repeat:02d}"


@dataclass(frozen=True, slots=True)
class Study:
    """A study, as it was planned. `settings` has, for each kind, the index of the campaign's
    setting for each number of nodes."""

    campaign: Campaign
    kinds: tuple[Kind, ...]
    nodes: tuple[int, ...]
    settings: dict[Kind, tuple[int, ...]]

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.campaign.name

    @property
    def id(self) -> str:
        """The name of its folder: `20261127-223455-kqzf`."""
        return self.campaign.id

    @property
    def folder(self) -> Path:
        """The folder of its campaign."""
        return self.campaign.folder

    @property
    def created(self) -> str:
        """The time at which it was started."""
        return self.campaign.created

    @property
    def command(self) -> str:
        """The command that started it. Empty in studies of older versions."""
        return str(self.campaign.options.get("command", ""))

    @property
    def repeats(self) -> int:
        """The number of runs of each point."""
        return self.campaign.repeats

    def planned_runs(self) -> list[PlannedRun]:
        """All planned runs, sorted by kind, nodes and repeat."""
        return [
            PlannedRun(kind, nodes, repeat)
            for kind in self.kinds
            for nodes in self.nodes
            for repeat in range(1, self.repeats + 1)
        ]

    def point(self, run: PlannedRun) -> int:
        """The index of the campaign's point that makes a run."""
        setting = self.settings[run.kind][self.nodes.index(run.nodes)]
        return setting + (run.repeat - 1) * len(self.campaign.settings)


def study_of(campaign: Campaign) -> Study:
    """The study of a campaign. Raises UsageError if its description is damaged."""
    options: Any = campaign.options
    try:
        kinds = tuple(kind for kind in KINDS if kind in options["kinds"])
        nodes = tuple(options["nodes"])
        settings = {kind: tuple(options["settings"][kind]) for kind in kinds}
        known = range(len(campaign.settings))
        wrong = [n for n in nodes if type(n) is not int or not 1 <= n <= _MOST_NODES]
        if not kinds or not nodes or wrong:
            raise ValueError("kinds or nodes are wrong")
        for numbers in settings.values():
            if len(numbers) != len(nodes) or not all(number in known for number in numbers):
                raise ValueError("settings do not fit its points")
    except KeyError as error:
        raise _damaged(campaign, f"{error} is missing") from None
    except (TypeError, ValueError) as error:
        raise _damaged(campaign, str(error)) from None
    return Study(campaign, kinds, nodes, settings)


def _damaged(campaign: Campaign, why: str) -> UsageError:
    return UsageError(f"{campaign.description} does not describe a study: {why}")
