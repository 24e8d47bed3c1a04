"""The folder of a study: what it plans, and which run measures which point.

studies/<name>/<UTC time>-<4 letters>/
    study.json      name, kind, nodes, repeats, created; shared: the numbers of nodes whose strong
                    and weak runs are the same; and how its runs are made (see `recipe`)
    config.yaml     the job, as given
    points/strong-n0004-r02/run     the path of the run directory of the second run on four nodes;
                                    a relative one counts from the folder it stands in
    runs/<name>/<run id>/           the run directories
    allocations/1/                  script and log of a job that makes several runs
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from hpc_amp.campaigns.output import write_file
from hpc_amp.config.values import run_name
from hpc_amp.errors import UsageError

Kind = Literal["strong", "weak"]
KINDS: tuple[Kind, ...] = ("strong", "weak")
T = TypeVar("T")
_POINT = re.compile(r"(strong|weak)-n(\d{4,9})-r(\d{2,9})")


@dataclass(frozen=True, slots=True, order=True)
class PlannedRun:
    """One run of a study: which point it measures, and which repeat of it it is (from 1 on)."""

    kind: Kind
    nodes: int
    repeat: int

    @property
    def folder_name(self) -> str:
        """Its folder in `points`."""
        return f"{self.kind}-n{self.nodes:04d}-r{self.repeat:02d}"


@dataclass(frozen=True, slots=True)
class Study:
    """A study as it was planned."""

    folder: Path
    name: str
    kinds: tuple[Kind, ...]
    nodes: tuple[int, ...]
    repeats: int
    created: str
    shared: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The name of its folder: `20261127-223455-kqzf`."""
        return self.folder.name

    def planned_runs(self) -> list[PlannedRun]:
        """All of them by kind, nodes and repeat; also those that have a folder but stand no longer
        in the plan."""
        planned = {
            PlannedRun(kind, nodes, repeat)
            for kind in self.kinds
            for nodes in self.nodes
            for repeat in range(1, self.repeats + 1)
        }
        points = self.folder / "points"
        names = os.listdir(points) if points.is_dir() else []
        for name in names:
            found = _POINT.fullmatch(name)
            if found and int(found[2]) and int(found[3]):
                kind: Kind = "strong" if found[1] == "strong" else "weak"
                planned.add(PlannedRun(kind, int(found[2]), int(found[3])))
        return sorted(planned)

    def made_as(self, run: PlannedRun) -> PlannedRun:
        """The planned run that says how a run is made: itself, or the strong one that it shares."""
        shares = run.nodes in self.shared and len(self.kinds) > 1
        return replace(run, kind=self.kinds[0]) if shares else run

    def run_dir(self, run: PlannedRun) -> Path | None:
        """Its run directory, or None where it was not submitted yet."""
        point = self.folder / "points" / run.folder_name
        try:
            text = (point / "run").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None
        return Path(os.path.normpath(point / text)) if text else None

    def run_dirs(self) -> set[Path]:
        """The run directories of all runs that were submitted."""
        return set(filter(None, map(self.run_dir, self.planned_runs())))

    def point_to(self, run: PlannedRun, run_dir: Path) -> None:
        """Note the run directory of a run, in one step. Raises UsageError."""
        path = self.folder / "points" / run.folder_name / "run"
        write_file(path, f"{os.path.relpath(run_dir, path.parent)}\n".encode())


def find_study(target: str, studies_dir: Path) -> Study:
    """The study that `target` means: its folder, or a name (its newest study).

    Raises UsageError where there is none, or its `study.json` is damaged.
    """
    named = studies_dir / target
    newest = sorted(named.glob("[0-9]*/study.json"))[-1:] if os.path.isdir(named) else []
    for description in (Path(target) / "study.json", named / "study.json", *newest):
        if os.path.isfile(description):  # False, too, for names that no file can have
            return read_study(description.parent.resolve())
    raise UsageError(
        f"there is no study {target!r}: neither a study's folder, nor a name in {studies_dir}",
        hint="--studies-dir looks elsewhere",
    )


def read_study(folder: Path) -> Study:
    """The study in a folder. Raises UsageError where its `study.json` is damaged."""
    return read_description(folder, lambda content: _study(folder, content))


def read_description(folder: Path, read: Callable[[Any], T]) -> T:
    """What `read` makes of the content of a study's `study.json`. Raises UsageError where there is
    none, and for a KeyError, TypeError or ValueError of `read`."""
    path = folder / "study.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    try:
        return read(content)
    except (KeyError, TypeError, ValueError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} does not describe a study: {said}") from None


def _study(folder: Path, content: Any) -> Study:
    if not isinstance(content, dict):
        raise TypeError("it is not a JSON object")
    name, kind, nodes, repeats = (content[key] for key in ("name", "kind", "nodes", "repeats"))
    if not isinstance(name, str):
        raise TypeError("name is not a text")
    run_name(name)
    if kind not in ("strong", "weak", "both"):
        raise ValueError("kind must be strong, weak or both")
    shared = content.get("shared", [])
    for key, numbers in (("nodes", nodes), ("shared", shared)):
        if not isinstance(numbers, list) or not all(_is_count(n) for n in numbers):
            raise ValueError(f"{key} is not a list of whole numbers from 1 on")
    if not nodes:
        raise ValueError("nodes is not a list of whole numbers from 1 on")
    if not _is_count(repeats):
        raise ValueError("repeats is not a whole number from 1 on")
    created = content.get("created", "")
    return Study(
        folder=folder,
        name=name,
        kinds=KINDS if kind == "both" else (kind,),
        nodes=tuple(sorted(set(nodes))),
        repeats=repeats,
        created=created if isinstance(created, str) and created.isprintable() else "",
        shared=tuple(shared),
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= 10**6
