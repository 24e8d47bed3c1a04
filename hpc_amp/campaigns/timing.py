"""The measurements of a run: the files that its ranks write.

Every attempt of a run writes into `attempts/<n>/timing/`:

`rank-00000.json`, one file for each rank, with five digits or more, written atomically. All times
are in seconds.

    rank            int, 0 to world_size - 1
    world_size      int, number of ranks of the run
    nodes           int, number of nodes that the run was given
    gpus_per_node   int or null, optional; 0 for a run on CPUs
    host            text, name of this rank's machine
    device          text, such as "NVIDIA A100-SXM4-40GB"
    torch           text, version of torch
    precision       text, such as "fp16"
    data            text, name of the data set; "synthetic" where it is synthetic
    batch_size      int, global: samples in one optimizer step over all ranks
    gradient_bytes  int, bytes of all gradients in an all-reduce of this model
    warmup_steps    int, steps before the first measured step; they are not in `steps`
    steps           list of numbers above 0: duration of each measured optimizer step, from the
                    end of the previous step, including the work of the device
    data_wait       list as long as `steps`: the part of the step in which the rank waited for
                    its next batch
    communication   null if it was not measured, or a list as long as `steps`, with null for steps
                    without a measurement: the part of the step in which communication did not
                    overlap with computation. It includes the wait for slower ranks.

`allreduce.json`, one for each run, optional: an all-reduce of the size of the gradients, alone.

    bytes           int
    seconds         list of numbers above 0: duration of each all-reduce, after a warm-up
    world_size      int
    nodes           int

Other keys are not checked, and are in `RankTiming.facts`. Texts contain only printable characters.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

# Larger or smaller numbers are damaged, and computing with them could overflow.
_SHORTEST, _LONGEST = 1e-9, 1e9
_LARGEST = 10**15
_RANK_FILE = re.compile(r"rank-\d{5,9}\.json")


class DamagedTiming(Exception):
    """A file of measurements is damaged; the message says why."""


@dataclass(frozen=True, slots=True)
class RankTiming:
    """The measurements of one rank; the fields are those of the file."""

    rank: int
    world_size: int
    nodes: int
    gpus_per_node: int | None
    host: str
    device: str
    torch: str
    precision: str
    data: str
    batch_size: int
    gradient_bytes: int
    warmup_steps: int
    steps: tuple[float, ...]
    data_wait: tuple[float, ...]
    communication: tuple[float | None, ...] | None
    facts: Mapping[str, Any] = field(compare=False, repr=False)
    """The whole content of the file."""
    reported: bool = False
    """Whether the user's own program reported the times (`campaigns.reported`). Then it is rank 0's
    report for all ranks, and the parts of a step are not known."""
    counted: int | None = None
    """How many steps `steps` are about, if a report may be about several. None: one each."""

    @property
    def measured_steps(self) -> int:
        """The number of steps that were measured."""
        return len(self.steps) if self.counted is None else self.counted

    @property
    def has_batch(self) -> bool:
        """Whether the batch is known. If not, `batch_size` is 1, and a step is the time of one
        sample."""
        return self.facts.get("batch_size") is not None


@dataclass(frozen=True, slots=True)
class AllReduceTiming:
    """The times of an all-reduce of the size of the gradients; the fields are those of the file."""

    bytes: int
    seconds: tuple[float, ...]
    world_size: int
    nodes: int


def read_rank(path: Path) -> RankTiming:
    """Read a `rank-*.json`. Raises DamagedTiming."""
    content = _read(path)
    steps = _durations(content, "steps")
    has_gpus = content.get("gpus_per_node") is not None
    timing = RankTiming(
        rank=_whole(content, "rank", 0),
        world_size=_whole(content, "world_size", 1),
        nodes=_whole(content, "nodes", 1),
        gpus_per_node=_whole(content, "gpus_per_node", 0) if has_gpus else None,
        host=_text(content, "host"),
        device=_text(content, "device"),
        torch=_text(content, "torch"),
        precision=_text(content, "precision"),
        data=_text(content, "data"),
        batch_size=_whole(content, "batch_size", 1),
        gradient_bytes=_whole(content, "gradient_bytes", 0),
        warmup_steps=_whole(content, "warmup_steps", 0),
        steps=steps,
        data_wait=_data_wait(content, len(steps)),
        communication=_communication(content, len(steps)),
        facts=content,
    )
    if timing.rank >= timing.world_size:
        raise DamagedTiming(
            f"rank {timing.rank} does not exist in a run of {timing.world_size} ranks"
        )
    return timing


def read_allreduce(path: Path) -> AllReduceTiming:
    """Read an `allreduce.json`. Raises DamagedTiming."""
    content = _read(path)
    return AllReduceTiming(
        bytes=_whole(content, "bytes", 1),
        seconds=_durations(content, "seconds"),
        world_size=_whole(content, "world_size", 1),
        nodes=_whole(content, "nodes", 1),
    )


@dataclass(frozen=True, slots=True)
class RunTiming:
    """The measurements of a run in one attempt. `damaged` has a line for each file that cannot be
    used, also of newer attempts."""

    ranks: tuple[RankTiming, ...] = ()
    allreduce: AllReduceTiming | None = None
    damaged: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks of the run; 0 if no rank has written its times."""
        return self.ranks[0].world_size if self.ranks else 0

    @property
    def complete(self) -> bool:
        """Whether all ranks have written their times, or the program has reported them."""
        return 0 < self.world_size == len(self.ranks) or any(rank.reported for rank in self.ranks)

    @property
    def step_seconds(self) -> float:
        """The median over all steps and ranks. There must be at least one rank."""
        return median(chain.from_iterable(rank.steps for rank in self.ranks))


def read_run(run_dir: Path) -> RunTiming:
    """The measurements of a run: the newest attempt with all ranks, else the one with most
    ranks."""
    best = RunTiming()
    damaged: list[str] = []
    for attempt in _newest_first(run_dir / "attempts"):
        timing = _read_attempt(attempt / "timing")
        damaged += timing.damaged
        if len(timing.ranks) > len(best.ranks) or timing.complete:
            best = timing
        if timing.complete:
            break
    return replace(best, damaged=tuple(damaged))


def _newest_first(attempts: Path) -> list[Path]:
    numbers = [int(name) for name in _names(attempts) if re.fullmatch(r"\d{1,9}", name)]
    return [attempts / str(number) for number in sorted(numbers, reverse=True)]


def _read_attempt(timing: Path) -> RunTiming:
    """The measurements of one attempt. Files that contradict the first rank count as damaged."""
    ranks: dict[int, RankTiming] = {}
    damaged: list[str] = []
    for name in sorted(name for name in _names(timing) if _RANK_FILE.fullmatch(name)):
        try:
            rank = read_rank(timing / name)
            _check(rank, name, next(iter(ranks.values()), rank))
            ranks[rank.rank] = rank
        except DamagedTiming as error:
            damaged.append(f"{timing / name}: {error}")
    allreduce = None
    if os.path.lexists(timing / "allreduce.json"):
        try:
            allreduce = read_allreduce(timing / "allreduce.json")
        except DamagedTiming as error:
            damaged.append(f"{timing / 'allreduce.json'}: {error}")
    return RunTiming(tuple(ranks.values()), allreduce, tuple(damaged))


def _check(rank: RankTiming, name: str, first: RankTiming) -> None:
    """Raise DamagedTiming unless a file is of the rank in its name and of the run of `first`."""
    if int(name[len("rank-") : -len(".json")]) != rank.rank:
        raise DamagedTiming(f"it is the file of rank {rank.rank}")
    for key in ("world_size", "nodes", "batch_size"):
        if getattr(rank, key) != getattr(first, key):
            raise DamagedTiming(
                f"{key} is {getattr(rank, key)}, and rank {first.rank} says {getattr(first, key)}"
            )


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if it does not exist."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DamagedTiming(f"it cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DamagedTiming("it is not JSON") from None
    if not isinstance(content, dict):
        raise DamagedTiming("it is not a JSON object")
    return content


def _whole(content: dict[str, Any], key: str, least: int) -> int:
    value = content.get(key)
    if type(value) is not int or value < least:
        raise DamagedTiming(f"{key} is not a whole number of at least {least}")
    if value > _LARGEST:
        raise DamagedTiming(f"{key} is too large")
    return value


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise DamagedTiming(f"{key} is not a printable text")
    return value


def _durations(content: dict[str, Any], key: str) -> tuple[float, ...]:
    values = content.get(key)
    if not isinstance(values, list) or not values:
        raise DamagedTiming(f"{key} is not a list with durations")
    if not all(_is_time(value) and value >= _SHORTEST for value in values):
        raise DamagedTiming(f"{key} contains a value that is not a duration above 0")
    return tuple(float(value) for value in values)


def _data_wait(content: dict[str, Any], length: int) -> tuple[float, ...]:
    values = _one_a_step(content, "data_wait", length)
    if not all(_is_time(value) for value in values):
        raise DamagedTiming("data_wait contains a value that is not a duration")
    return tuple(float(value) for value in values)


def _communication(content: dict[str, Any], length: int) -> tuple[float | None, ...] | None:
    if content.get("communication") is None:
        return None
    values = _one_a_step(content, "communication", length)
    if not all(value is None or _is_time(value) for value in values):
        raise DamagedTiming("communication contains a value that is not a duration")
    return tuple(None if value is None else float(value) for value in values)


def _one_a_step(content: dict[str, Any], key: str, length: int) -> list[Any]:
    values = content.get(key)
    if not isinstance(values, list) or len(values) != length:
        raise DamagedTiming(f"{key} is not a list with one number for each of {length} steps")
    return values


def _is_time(value: object) -> bool:
    """Whether a value can be the duration of a step in seconds. False for `true`, for NaN, and for
    whole numbers that are too large for a float."""
    return type(value) in (int, float) and 0 <= value < _LONGEST  # type: ignore[operator]
