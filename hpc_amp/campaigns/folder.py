"""The folder of a campaign.

<parent>/<name>/<UTC time>-<4 letters>/   and   <parent>/<name>/latest, a file with the newest id
    campaign.json   view, keys, the values of every point, groups of points with their script
    config.yaml     the job file, as given
    jobs.jsonl      `job.json` of every point, one on each line
    git.json, git.patch   the state of the user's code in git
    snapshot.tar    the package as `src`, and the user's `code`
    launch.sh       launch script of point 0000; it is adapted for each point of the group
    array-1.sh      the submitted script: it creates the run directory of a point and starts the run
    state.jsonl     which points were submitted in which array or job
    logs/           output of the scheduler itself
    points/0007/    an ordinary run directory, created when the point starts
    points/0007-2/  the second run of the point, if interrupted runs are not resumed
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.output import write_file
from hpc_amp.campaigns.points import Point
from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.locks import UnsupportedLocksError, lock

FORMAT = 3
"""The version of the folder's format. 1 and 2 were formats of sweeps."""

DESCRIPTION = "campaign.json"
_RUN = re.compile(r"(\d{4,})(?:-(\d{1,9}))?")

Submitting = Literal["arrays", "jobs", "one job"]
"""How runs are submitted. `arrays`: as job arrays, or as single jobs if the scheduler has no
arrays. `jobs`: each run as a job of its own, in the order of the points. `one job`: all runs in one
job, one after the other."""


@dataclass(frozen=True, slots=True)
class Group:
    """Points with the same launch script, and the header of the scripts that are submitted for
    them. Times are in seconds."""

    script: str
    """Name of the launch script."""
    directives: tuple[str, ...]
    points: tuple[int, ...]
    nodes: int
    gpus: int
    """GPUs that a point uses on each node."""
    cores: int
    """Cores that a point uses on each node."""
    tasks_per_node: int
    walltime: int
    stop_margin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign, as its folder describes it."""

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
    """All runs: first each setting once, then all settings again for each further repeat."""
    repeats: int
    groups: tuple[Group, ...]
    submitting: Submitting
    resumes: bool
    """Whether an interrupted run is resumed. If not, a new run is made from the start, in another
    run directory."""
    at_once: int | None
    """How many points may run at the same time. None: no limit of ours."""
    own_code: bool
    """Whether every point gets a copy of the user's code."""
    options: Mapping[str, Any]
    """Values that only its view needs."""

    @property
    def id(self) -> str:
        """The name of its folder: `20261127-223455-kqzf`."""
        return self.folder.name

    @property
    def description(self) -> Path:
        """The path of `campaign.json`. Commands lock this file."""
        return self.folder / DESCRIPTION

    @property
    def settings(self) -> tuple[Point, ...]:
        """The points of the first repeat: each setting once."""
        return self.points[: len(self.points) // self.repeats]

    def overrides_of(self, index: int) -> list[str]:
        """The overrides of a point."""
        return self.points[index].settings(self.keys)

    def group_of_points(self) -> dict[int, Group]:
        """The group of each point, by its number."""
        return {point: group for group in self.groups for point in group.points}

    def run_names(self) -> dict[int, str]:
        """The name of the newest run directory of each point that has one."""
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
        """The newest run directory of a point. If the point has not run, the directory of its first
        run."""
        name = None if self.resumes else self.run_names().get(index)
        return self.folder / "points" / (name or run_name(index))


def run_name(index: int) -> str:
    """The name of the first run directory of a point. Scripts rely on four digits."""
    return f"{index:04d}"


def next_run_name(campaign: Campaign, index: int, names: Mapping[int, str]) -> str:
    """The name of the run directory for the next run of a point. `names` are the names of the
    newest run directories (`Campaign.run_names`)."""
    newest = names.get(index)
    if newest is None or campaign.resumes:
        return run_name(index)
    number = int(newest.partition("-")[2] or 1)
    return f"{run_name(index)}-{number + 1}"


def write_description(campaign: Campaign) -> None:
    """Write `campaign.json` atomically. Raises UsageError if it cannot be written."""
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
    """Read the campaign in a folder. Raises UsageError if its `campaign.json` is damaged or has an
    unknown version."""
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
        raise ValueError("it has no points, or does not say how they are submitted")
    if any(len(point.values) != len(content["keys"]) for point in rounds):
        raise ValueError("a point does not have a value for each key")
    groups = tuple(_group(group) for group in content["groups"])
    grouped = {index for group in groups for index in group.points}
    if not grouped.issuperset(range(len(rounds))):
        raise ValueError("its groups do not contain all points")
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
    """All points `repeats` times: each once, then all again. In this order, changes of the machine
    over time affect all points in the same way."""
    if repeats < 1:
        raise ValueError("repeats is not a whole number of at least 1")
    return tuple(
        replace(point, index=repeat * len(points) + point.index, repeat=repeat + 1)
        for repeat in range(repeats)
        for point in points
    )


def refuse_elsewhere(campaign: Campaign) -> None:
    """Raise UsageError if a campaign was copied or moved. Its scripts and jobs contain the path of
    the folder in which it was started."""
    path = campaign.folder / "jobs.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            recorded = Path(json.loads(next(lines))["run_dir"]).parents[1]
    except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration):
        raise UsageError(f"{path} does not contain the jobs of the points") from None
    if not rundir.same_folder(campaign.folder, recorded):
        rundir.refuse_copy(campaign.folder, recorded)


@contextmanager
def holding(campaign: Campaign, what: str) -> Iterator[None]:
    """The lock of a campaign: only one command at a time submits or cancels its runs. The kernel
    releases it when the process ends. Raises UsageError if another process has it, also on another
    machine if the file system supports that. `what` names the runs in the message."""
    try:
        held = campaign.description.open("r+b")  # NFS locks only what can be written
    except OSError as error:
        raise UsageError(f"{campaign.folder} cannot be written: {error.strerror}") from None
    with held:
        try:
            is_locked = lock(held.fileno(), wait=False)
        except UnsupportedLocksError:
            is_locked = True  # without locks, users have to run one command at a time themselves
        if not is_locked:
            raise UsageError(
                f"another command is submitting {what} of {campaign.folder}",
                hint="wait for it, or end it with Ctrl-C",
            )
        yield
