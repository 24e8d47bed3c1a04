"""The folder of a campaign.

<parent>/<name>/<UTC time>-<4 letters>/   and   <parent>/<name>/latest -> the newest
    campaign.json   view, keys, the values of every point, groups of points with their script
    config.yaml     the job file, as given
    jobs.jsonl      `job.json` of every point, one a line
    snapshot.tar    the package as `src`, and the user's `code`
    launch.sh       launch script of point 0000, which stands for any point of its group
    array-1.sh      what was submitted: it makes the run directory of a point, and runs that
    state.jsonl     which points were submitted as what
    logs/           what the scheduler itself says
    points/0007/    an ordinary run directory, from the start of its point on
    points/0007-2/  its second run, where an interrupted run is made again and not resumed
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.output import write_file
from hpc_amp.campaigns.points import Point
from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir

FORMAT = 3
"""The version of the folder. 1 and 2 were those of sweeps."""

DESCRIPTION = "campaign.json"
_RUN = re.compile(r"(\d{4,})(?:-(\d{1,9}))?")

Submitting = Literal["arrays", "jobs", "one job"]
"""How runs are submitted: as arrays (job by job where the scheduler has none), each as a job of its
own in the order of the points, or all in one job, one after the other."""


@dataclass(frozen=True, slots=True)
class Group:
    """Points with the same launch script, and the header of scripts that are submitted for them.
    Times are in seconds."""

    script: str
    """Name of the launch script."""
    directives: tuple[str, ...]
    points: tuple[int, ...]
    nodes: int
    gpus: int
    """GPUs that a point takes of a node."""
    cores: int
    """Cores that a point takes of a node."""
    tasks_per_node: int
    walltime: int
    stop_margin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign as it was written."""

    folder: Path
    view: str
    """Name of the `View` that started it."""
    name: str
    created: str
    site: str
    scheduler: str
    fixed: tuple[str, ...]
    """Overrides that hold for all points."""
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    """All runs: each setting once, then all of them once more for each further repeat."""
    repeats: int
    groups: tuple[Group, ...]
    submitting: Submitting
    resumes: bool
    """Whether a run that was interrupted is resumed. If not, it is made again from the start, in
    another run directory."""
    at_once: int | None
    """How many points may run at the same time; None for as many as the scheduler lets."""
    own_code: bool
    """Whether every point gets a copy of the user's code."""
    options: Mapping[str, Any]
    """What only its view needs."""

    @property
    def id(self) -> str:
        """The name of its folder: `20261127-223455-kqzf`."""
        return self.folder.name

    @property
    def description(self) -> Path:
        """The file that makes its folder a campaign. Commands lock it."""
        return self.folder / DESCRIPTION

    @property
    def settings(self) -> tuple[Point, ...]:
        """The points of the first round: each setting once."""
        return self.points[: len(self.points) // self.repeats]

    def overrides_of(self, index: int) -> list[str]:
        """What a point sets, as overrides."""
        return self.points[index].settings(self.keys)

    def group_of_points(self) -> dict[int, Group]:
        """The group of each point, by its number."""
        return {point: group for group in self.groups for point in group.points}

    def run_names(self) -> dict[int, str]:
        """The name of the newest run directory of each point that has one, with one look at the
        folder."""
        newest: dict[int, tuple[int, str]] = {}
        try:
            names = os.listdir(self.folder / "points")
        except OSError:
            names = []
        for name in names:
            found = _RUN.fullmatch(name)
            if found:
                index, number = int(found[1]), int(found[2] or 1)
                newest[index] = max(newest.get(index, (0, "")), (number, name))
        return {index: name for index, (_, name) in newest.items()}

    def point_dir(self, index: int) -> Path:
        """The newest run directory of a point, or, where it has none yet, that of its first run."""
        name = None if self.resumes else self.run_names().get(index)
        return self.folder / "points" / (name or run_name(index))


def run_name(index: int) -> str:
    """The name of the first run directory of a point. Scripts count on four digits."""
    return f"{index:04d}"


def next_run_name(campaign: Campaign, index: int, names: Mapping[int, str]) -> str:
    """The name of the run directory that the next run of a point uses; `names` are those of the
    newest ones."""
    newest = names.get(index)
    if newest is None or campaign.resumes:
        return run_name(index)
    number = int(newest.partition("-")[2] or 1)
    return f"{run_name(index)}-{number + 1}"


def write_description(campaign: Campaign) -> None:
    """Write `campaign.json`, in one step. Raises UsageError."""
    content = {
        "format": FORMAT,
        "view": campaign.view,
        "name": campaign.name,
        "created": campaign.created,
        "site": campaign.site,
        "scheduler": campaign.scheduler,
        "fixed": campaign.fixed,
        "keys": campaign.keys,
        "repeats": campaign.repeats,
        "submitting": campaign.submitting,
        "resumes": campaign.resumes,
        "at_once": campaign.at_once,
        "own_code": campaign.own_code,
        "options": dict(campaign.options),
        "groups": [_plain_group(group) for group in campaign.groups],
        "points": [point.values for point in campaign.settings],
    }
    write_file(campaign.description, f"{json.dumps(content)}\n".encode())


def _plain_group(group: Group) -> dict[str, Any]:
    plain = {name: getattr(group, name) for name in Group.__slots__}
    return {**plain, "points": ranges.to_text(group.points)}


def read_campaign(folder: Path) -> Campaign:
    """The campaign in a folder. Raises UsageError where its `campaign.json` is damaged, or of a
    version that is not known."""
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UsageError(
                f"{path} has format {content['format']}, and this hpc-amp reads {FORMAT}",
                hint="use the hpc-amp that wrote it",
            )
        return _campaign(folder, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise UsageError(f"{path} does not describe a campaign: {error} is missing") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} does not describe a campaign: {error}") from None


def _campaign(folder: Path, content: Any) -> Campaign:
    texts = {key: str(content[key]) for key in ("view", "name", "created", "site", "scheduler")}
    rounds = [Point(index, tuple(values)) for index, values in enumerate(content["points"])]
    if not rounds or content["submitting"] not in get_args(Submitting):
        raise ValueError("it has no points, or says not how they are submitted")
    if any(len(point.values) != len(content["keys"]) for point in rounds):
        raise ValueError("a point has not a value for each key")
    groups = tuple(_group(group) for group in content["groups"])
    grouped = {index for group in groups for index in group.points}
    if not grouped.issuperset(range(len(rounds))):
        raise ValueError("its groups do not have all points")
    return Campaign(
        folder=folder,
        **texts,
        fixed=tuple(content["fixed"]),
        keys=tuple(content["keys"]),
        points=repeated(rounds, int(content["repeats"])),
        repeats=int(content["repeats"]),
        groups=groups,
        submitting=content["submitting"],
        resumes=bool(content["resumes"]),
        at_once=content["at_once"],
        own_code=bool(content["own_code"]),
        options=dict(content["options"]),
    )


def _group(content: Any) -> Group:
    values = {name: content[name] for name in Group.__slots__}
    values["directives"] = tuple(values["directives"])
    values["points"] = tuple(ranges.from_text(values["points"]))
    return Group(**values)


def repeated(points: Sequence[Point], repeats: int) -> tuple[Point, ...]:
    """All points once, then all of them once more, so often in total. What changes with time on a
    machine affects all points alike then."""
    if repeats < 1:
        raise ValueError("repeats is not a whole number from 1 on")
    return tuple(
        replace(point, index=repeat * len(points) + point.index, repeat=repeat + 1)
        for repeat in range(repeats)
        for point in points
    )


def refuse_elsewhere(campaign: Campaign) -> None:
    """Raises UsageError where a campaign is not in the folder that it was started in: its scripts
    and jobs would work there."""
    path = campaign.folder / "jobs.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            recorded = Path(json.loads(next(lines))["run_dir"]).parents[1]
    except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration):
        raise UsageError(f"{path} does not contain the jobs of the points") from None
    if not rundir.same_folder(campaign.folder, recorded):
        rundir.refuse_copy(campaign.folder, recorded)
