"""The table of NVIDIA's PyTorch images, and which of them a driver supports.

A driver supports an image natively if it is at least as new as the driver that the image was made
for. Older drivers support it by minor-version compatibility, down to a minimum that depends on
CUDA's major version. Below this minimum, only data-centre GPUs are supported, by the libraries in
the image's `cuda/compat`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_amp.errors import UsageError

REPOSITORY = "nvcr.io/nvidia/pytorch"
OLDEST_TORCH = (2, 1)
"""The oldest torch that the job side supports."""
OLDEST_PYTHON = (3, 10)

Support = Literal["native", "minor-version", "forward", "too-old", "unknown"]

_TAG = re.compile(r"(\d\d\.\d\d)(-py3(-igpu)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of the table. Facts that no source gives are None."""

    release: str
    torch: str
    cuda: str
    driver: str | None = None
    floor: str
    compat: list[str] | None = None
    openmpi: str | None = None
    python: str | None = None
    gib: float | None = None
    unverified: list[str]
    source: str

    @property
    def image(self) -> str:
        """The reference of the image, without a transport."""
        return f"{REPOSITORY}:{self.release}-py3"

    @property
    def trains(self) -> bool:
        """Whether built-in training runs with this torch."""
        return version(self.torch)[:2] >= OLDEST_TORCH

    def support(self, driver: str) -> Support:
        """How a driver supports this image."""
        return support(driver, self.driver, self.floor, self.compat)


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """The releases, oldest first, with the sources and the date of the table."""

    date: str
    sources: list[str]
    floors: dict[str, str]
    releases: list[Release]

    def floor(self, cuda: str) -> str | None:
        """The oldest driver for a version of CUDA, by minor-version compatibility. None if it is
        unknown."""
        return self.floors.get(cuda.partition(".")[0])

    def find(self, tag: str) -> Release | None:
        """The row of a tag such as `25.06-py3`; None if there is none."""
        match = _TAG.match(tag)
        return next((row for row in self.releases if match and row.release == match[1]), None)


@functools.cache
def table() -> ReleaseTable:
    """The table that ships with hpc-amp."""
    import yaml

    # BaseLoader reads all values as text. Otherwise 20.10 and 12.9 would become numbers.
    loaded: dict[str, Any] = yaml.load(
        Path(__file__).with_name("ngc.yaml").read_text(), yaml.BaseLoader
    )
    floors: dict[str, str] = loaded["floors"]
    rows = []
    for row in loaded["releases"]:
        known = {**row, "unverified": row.get("unverified", [])}
        known["floor"] = floors[row["cuda"].partition(".")[0]]
        if "gib" in row:
            known["gib"] = float(row["gib"])
        rows.append(Release(**known))
    return ReleaseTable(loaded["date"], loaded["sources"], floors, rows)


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: `(2, 8, 0)` for `2.8.0a0+5228986c39.nv25.06`. The suffix is
    ignored: by Python's rules, NVIDIA's 2.8.0a0 would be a pre-release and older than 2.8."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def as_new_as(have: str, wanted: str) -> bool:
    """Whether the version `have` is not older than `wanted`. Only the given numbers are compared:
    `535` is as new as `535.104.05`, because it stands for the whole branch."""
    length = len(version(have))
    return version(have) >= version(wanted)[:length]


def support(driver: str, made_for: str | None, floor: str, compat: list[str] | None) -> Support:
    """How a driver supports an image. `made_for` is the driver that the image was made for, `floor`
    the oldest one by minor-version compatibility, and `compat` the older branches that the image's
    compatibility libraries support. `unknown`: the driver is below the floor, and `compat` is
    None."""
    if made_for is not None and as_new_as(driver, made_for):
        return "native"
    if as_new_as(driver, floor):
        return "minor-version"
    if compat is None:
        return "unknown"
    branches = (branch for branch in compat if version(branch)[:1] == version(driver)[:1])
    return "forward" if any(as_new_as(driver, branch) for branch in branches) else "too-old"


_WORKS = ("native", "minor-version", "forward")


def best_first(releases: Sequence[Release], driver: str | None) -> list[Release]:
    """The newest release first. If `driver` is not None, those that train with it are first."""
    newest = sorted(releases, key=lambda row: row.release, reverse=True)
    if driver is None:
        return newest
    return sorted(newest, key=lambda row: not (row.trains and row.support(driver) in _WORKS))


def recommended(releases: Sequence[Release], driver: str | None) -> Release | None:
    """The newest release that trains and, if `driver` is not None, is supported by it: natively if
    one is, else by minor-version compatibility, else on data-centre GPUs. None if there is none."""
    newest = [row for row in best_first(releases, None) if row.trains]
    if driver is None:
        return newest[0] if newest else None
    for wanted in _WORKS:
        for row in newest:
            if row.support(driver) == wanted:
                return row
    return None


def check_driver(text: str) -> str:
    """Check the version of a driver and return it. Raises UsageError if it is not a version."""
    if not re.fullmatch(r"\d{3,4}(\.\d+){0,2}", text):
        raise UsageError(
            f"{text!r} is not a version of NVIDIA's driver",
            hint="write it as nvidia-smi shows it: 535 or 535.104.05",
        )
    return text


def check_torch(text: str) -> tuple[int, ...]:
    """The numbers of a torch version. Raises UsageError if the text is not a version."""
    if not re.fullmatch(r"\d+(\.\d+){0,2}", text):
        raise UsageError(f"{text!r} is not a version of torch", hint="write 2.6 or 2.6.0")
    return version(text)
