"""The table of NVIDIA's PyTorch images, and which of them a driver can run.

A driver runs an image natively where it is as new as the one that the image was made for. An older
one does it by minor-version compatibility from a floor on, which depends on CUDA's major version.
Below the floor only data-centre GPUs can, through the libraries in the image's `cuda/compat`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_amp.errors import UsageError

REPOSITORY = "nvcr.io/nvidia/pytorch"
OLDEST_TORCH = (2, 1)
"""What the job side needs."""
OLDEST_PYTHON = (3, 10)

Support = Literal["native", "minor-version", "forward", "too-old", "unknown"]

_TAG = re.compile(r"(\d\d\.\d\d)(-py3(-igpu)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of the table. What no source says is None."""

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
        """The reference to pull, without a transport."""
        return f"{REPOSITORY}:{self.release}-py3"

    @property
    def trains(self) -> bool:
        """Whether the built-in training runs on this torch."""
        return version(self.torch)[:2] >= OLDEST_TORCH


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """The releases, oldest first, with where and when they were read."""

    date: str
    sources: list[str]
    floors: dict[str, str]
    releases: list[Release]

    def floor(self, cuda: str) -> str | None:
        """The oldest driver for a version of CUDA by minor-version compatibility."""
        return self.floors.get(cuda.partition(".")[0])

    def find(self, tag: str) -> Release | None:
        """The row of a tag such as `25.06-py3`, if there is one."""
        match = _TAG.match(tag)
        return next((row for row in self.releases if match and row.release == match[1]), None)


@functools.cache
def table() -> ReleaseTable:
    """The table that ships with hpc-amp."""
    import yaml

    # As text: YAML would read 20.10 and 12.9 as numbers.
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
    """The leading numbers of a version: `(2, 8, 0)` for `2.8.0a0+5228986c39.nv25.06`. NVIDIA's own
    versions are pre-releases to Python packaging, in which 2.8.0a0 is older than 2.8."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def as_new_as(have: str, wanted: str) -> bool:
    """Whether a version is not older than another, as far as it is said: `535` is as new as
    `535.104.05`, since it names the whole branch."""
    length = len(version(have))
    return version(have) >= version(wanted)[:length]


def support(driver: str, made_for: str | None, floor: str, compat: list[str] | None) -> Support:
    """How a driver can run an image. `unknown`: below the floor, and no source lists which older
    branches the image's compatibility libraries work with."""
    if made_for is not None and as_new_as(driver, made_for):
        return "native"
    if as_new_as(driver, floor):
        return "minor-version"
    if compat is None:
        return "unknown"
    branches = (branch for branch in compat if version(branch)[:1] == version(driver)[:1])
    return "forward" if any(as_new_as(driver, branch) for branch in branches) else "too-old"


def check_driver(text: str) -> str:
    """A driver's version as it stands. Raises UsageError for anything else."""
    if not re.fullmatch(r"\d{3,4}(\.\d+){0,2}", text):
        raise UsageError(
            f"{text!r} is not a version of NVIDIA's driver",
            hint="write it as nvidia-smi shows it: 535 or 535.104.05",
        )
    return text


def check_torch(text: str) -> tuple[int, ...]:
    """The numbers of a torch version as a filter. Raises UsageError."""
    if not re.fullmatch(r"\d+(\.\d+){0,2}", text):
        raise UsageError(f"{text!r} is not a version of torch", hint="write 2.6 or 2.6.0")
    return version(text)
