"""What trackers read of a run directory. Imports no torch, because the login node exports runs."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.files import read_json, write_atomically

FOLDER = "trackers"
"""The folder in a run directory in which trackers keep what they need to resume."""
_SHAPE = ("nodes", "gpus_per_node", "ranks_per_node")


@dataclass(frozen=True, slots=True)
class Point:
    """A line of metrics.jsonl: the values of some curves at a step. `time` is in seconds since
    1970."""

    step: int
    time: float
    values: Mapping[str, float]


def points(run_dir: Path) -> Iterator[Point]:
    """The lines of metrics.jsonl. A line that is still being written is left out.

    A program of the user's own may write lines without a time, which get that of the file, and
    values that are no numbers, which are left out.
    """
    try:
        file = (run_dir / "metrics.jsonl").open(errors="replace")
    except FileNotFoundError:
        return
    with file:
        changed = os.fstat(file.fileno()).st_mtime
        for text in file:
            try:
                line = json.loads(text)
                step, time = int(line.pop("step")), float(line.pop("time", changed))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            numbers = {name: one for name, one in line.items() if isinstance(one, (int, float))}
            yield Point(step, time, numbers)


def configuration(run_dir: Path) -> dict[str, Any]:
    """The settings of a run that trackers show: `name`, `train`, and in `job` its nodes and GPUs.
    Others are left out: the variables of `container.env`, for example, may be secret. Empty if the
    run has no job.json and no train.json."""
    resolved = read_json(run_dir / "job.json").get("job")
    if isinstance(resolved, dict):
        job = resolved.get("job", {})
        shape = {key: job[key] for key in _SHAPE if key in job}
        return {"name": resolved.get("name"), "job": shape, "train": resolved.get("train")}
    train = read_json(run_dir / "train.json")
    return {"name": run_dir.name, "train": train} if train else {}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """The settings by their keys, such as `train.optimizer.lr`. Lists are texts, and settings
    without a value are left out."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + key] = value
        elif value is not None:
            found[prefix + key] = json.dumps(value)
    return found


def outcome(run_dir: Path) -> str | None:
    """How the last attempt ended that wrote a summary, or None."""
    found = read_json(run_dir / "summary.json").get("outcome")
    return found if isinstance(found, str) else None


def identity(run_dir: Path) -> str:
    """The id of a run for trackers, always the same one. The first call creates it.

    A run directory that was moved keeps its id. A copy gets an id of its own while the original
    exists, so that its curves do not replace those of the original.
    """
    folder = run_dir.resolve() / FOLDER
    folder.mkdir(exist_ok=True)
    file = folder / "id"
    if not file.exists():
        _record(file, secrets.token_hex(8), replace=False)
    known, _, place = file.read_text().strip().partition("\n")
    if place in ("", str(folder.parent)):
        return known
    original = Path(place) / FOLDER / "id"
    is_copy = (
        original.is_file()
        and not original.samefile(file)
        and original.read_text().partition("\n")[0] == known
    )
    if is_copy:  # every process that asks at the same time makes the same id
        known = hashlib.sha256(f"{known} {folder.parent}".encode()).hexdigest()[:16]
    _record(file, known, replace=True)
    return known


def _record(file: Path, known: str, *, replace: bool) -> None:
    """Write an id and its run directory. Without `replace`, the file of a faster process stays."""
    text = f"{known}\n{file.parent.parent}\n"
    if replace:
        write_atomically(file, text)
        return
    temporary = file.with_name(f".id.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.write_text(text)
    try:
        os.link(temporary, file)  # fails if another process has been faster
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.replace(temporary, file)
    temporary.unlink(missing_ok=True)


def group(run_dir: Path) -> str | None:
    """The name of the campaign that a run is a point of, or None."""
    if run_dir.parent.name != "points":
        return None
    campaign = run_dir.parent.parent
    return f"{campaign.parent.name}/{campaign.name}"
