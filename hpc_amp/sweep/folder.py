"""The folder of a sweep.

sweeps/<name>/<UTC time>-<4 letters>/   and   sweeps/<name>/latest -> the newest
    sweep.json      keys, the values of every point, groups of points with their script
    config.yaml     the job file, as given
    jobs.jsonl      `job.json` of every point, one a line
    snapshot.tar    the package as `src`, and the user's `code`
    launch.sh       launch script of point 0000, which stands for any point of its group
    array-1.sh      what was submitted: it makes the run directory of its point, and runs that
    state.jsonl     which points were submitted as what
    logs/           what the scheduler itself says
    points/0007/    an ordinary run directory, from the start of its point on
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.sweep import ranges
from hpc_amp.sweep.points import Point

SCHEMA = 2
_WITHOUT_POINT_CODE = 1  # its snapshot lacks the host code that makes a point's run directory


@dataclass(frozen=True, slots=True)
class Group:
    """Points with the same launch script, and the header of scripts that are submitted for them."""

    script: str
    """Name of the launch script."""
    directives: tuple[str, ...]
    points: tuple[int, ...]
    gpus: int
    """GPUs that a point takes of a node."""
    cores: int
    """Cores that a point takes of a node."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep as it was written."""

    folder: Path
    name: str
    created: str
    site: str
    scheduler: str
    fixed: tuple[str, ...]
    """Overrides that hold for all points."""
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    groups: tuple[Group, ...]
    at_once: int | None
    """How many points may run at the same time; None for as many as the scheduler lets."""
    own_code: bool
    """Whether every point gets a copy of the user's code."""
    schema: int = SCHEMA
    """The version of its folder."""

    @property
    def id(self) -> str:
        """The name of its folder: `20261127-223455-kqzf`."""
        return self.folder.name

    def point_dir(self, index: int) -> Path:
        """The run directory of a point, which is made when it starts."""
        return point_dir(self.folder, index)

    def settings(self, index: int) -> list[str]:
        """What a point sets, as overrides."""
        return self.points[index].settings(self.keys)


def point_dir(folder: Path, index: int) -> Path:
    """The run directory of a point of the sweep in `folder`. Scripts count on four digits."""
    return folder / "points" / f"{index:04d}"


def write_description(sweep: Sweep) -> None:
    """Write `sweep.json`."""
    content = {
        "schema": SCHEMA,
        "name": sweep.name,
        "created": sweep.created,
        "site": sweep.site,
        "scheduler": sweep.scheduler,
        "fixed": sweep.fixed,
        "keys": sweep.keys,
        "at_once": sweep.at_once,
        "own_code": sweep.own_code,
        "groups": [
            {
                "script": group.script,
                "directives": group.directives,
                "points": ranges.to_text(group.points),
                "gpus": group.gpus,
                "cores": group.cores,
            }
            for group in sweep.groups
        ],
        "points": [point.values for point in sweep.points],
    }
    (sweep.folder / "sweep.json").write_text(json.dumps(content) + "\n")


def read_sweep(folder: Path) -> Sweep:
    """The sweep in a folder. Raises UsageError where its `sweep.json` is damaged, or of a version
    that is not known."""
    path = folder / "sweep.json"
    try:
        sweep = _sweep(folder, json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} does not describe a sweep: {error!r}") from None
    if sweep.schema not in (SCHEMA, _WITHOUT_POINT_CODE):
        raise UsageError(
            f"{path} has schema {sweep.schema}, and this hpc-amp reads up to {SCHEMA}",
            hint="use the hpc-amp that wrote it",
        )
    return sweep


def refuse_older(sweep: Sweep) -> None:
    """Raises UsageError where the code in a sweep's snapshot cannot run scripts of this version."""
    if sweep.schema == _WITHOUT_POINT_CODE:
        raise UsageError(
            f"{sweep.folder} was made by an older hpc-amp, and its points cannot be submitted "
            "together by this one",
            hint="resume each point that has begun by itself (hpc-amp resume "
            f"{sweep.folder}/points/0000), or start a new sweep",
        )


def refuse_elsewhere(sweep: Sweep) -> None:
    """Raises UsageError where a sweep is not in the folder that it was submitted in: its scripts
    and jobs would work there."""
    path = sweep.folder / "jobs.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            recorded = Path(json.loads(next(lines))["run_dir"]).parents[1]
    except (OSError, ValueError, KeyError, TypeError, IndexError, StopIteration):
        raise UsageError(f"{path} does not tell the jobs of the points") from None
    if not rundir.same_folder(sweep.folder, recorded):
        rundir.refuse_copy(sweep.folder, recorded)


def _sweep(folder: Path, content: Any) -> Sweep:
    return Sweep(
        folder=folder,
        name=content["name"],
        created=content["created"],
        site=content["site"],
        scheduler=content["scheduler"],
        fixed=tuple(content["fixed"]),
        keys=tuple(content["keys"]),
        points=tuple(Point(index, tuple(values)) for index, values in enumerate(content["points"])),
        groups=tuple(
            Group(
                group["script"],
                tuple(group["directives"]),
                tuple(ranges.from_text(group["points"])),
                group["gpus"],
                group["cores"],
            )
            for group in content["groups"]
        ),
        at_once=content["at_once"],
        own_code=content["own_code"],
        schema=content["schema"],
    )


def find_sweep(target: str, sweeps_dir: Path) -> Sweep:
    """The sweep that `target` means: its folder, or a name (its newest sweep). Raises UsageError
    where there is none."""
    for folder in (Path(target), sweeps_dir / target / "latest", sweeps_dir / target):
        if os.path.isfile(folder / "sweep.json"):  # False, too, for names that no file can have
            return read_sweep(folder.resolve())
    raise UsageError(
        f"there is no sweep {target!r}: neither a sweep's folder, nor a name in {sweeps_dir}",
        hint="--sweeps-dir looks elsewhere",
    )
