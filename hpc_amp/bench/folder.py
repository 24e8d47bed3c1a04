"""The folder of a benchmark: what it plans, and which run measures which point.

benches/<name>/<UTC time>-<4 letters>/
    bench.json              name, precisions, repeats, warmup, steps, created, gpus; and how its
                            runs are made: workdir, overrides, site
    config.yaml             the job, as given
    allocations/1/          script and log of a job that makes runs
    runs/<name>/<run id>/   a run directory for each point
    points/fp16-r02/run     the path from here of the run directory of the second run in fp16
    report/                 table, JSON and picture
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.output import write_file
from hpc_amp.errors import UsageError


@dataclass(frozen=True, slots=True)
class PrecisionRun:
    """One run: its precision, and which repeat it is (from 1 on)."""

    precision: str
    repeat: int

    @property
    def folder_name(self) -> str:
        """Its folder in `points`."""
        return f"{self.precision}-r{self.repeat:02d}"


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark as it was planned. `gpus`: whether its job asks for any. Its runs are made with
    `overrides` in the folder `workdir`, on `site` or, if None, on that of the job."""

    folder: Path
    name: str
    precisions: tuple[str, ...]
    repeats: int
    warmup: int
    steps: int
    created: str
    gpus: bool
    workdir: str | None
    """None in a folder of an older hpc-amp, which did not note how its runs were made."""
    overrides: tuple[str, ...]
    site: str | None

    @property
    def description(self) -> Path:
        """The file that makes its folder a benchmark."""
        return self.folder / "bench.json"

    @property
    def points(self) -> list[PrecisionRun]:
        """In the order in which they run: every precision once, then again, so that what changes
        with time meets all of them alike."""
        return [
            PrecisionRun(precision, repeat)
            for repeat in range(1, self.repeats + 1)
            for precision in self.precisions
        ]

    def run_dir(self, point: PrecisionRun) -> Path:
        """The run directory of a point. Raises UsageError where the folder is damaged."""
        path = self.folder / "points" / point.folder_name / "run"
        try:
            return self.folder / path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None

    def made_in(self) -> str:
        """The folder that its runs are made in. Raises UsageError where that was not noted."""
        if self.workdir is None:
            raise UsageError(
                f"{self.folder} was made by an older hpc-amp, which did not note how its runs are "
                "made",
                hint="start a new benchmark",
            )
        return self.workdir

    def run_dirs(self) -> list[Path]:
        """Those of all points, in the order in which they run. Raises UsageError."""
        return [self.run_dir(point) for point in self.points]

    def write(self, config_text: str, run_dirs: Mapping[PrecisionRun, Path]) -> None:
        """Make the folder, without the run directories; its description, which makes it a
        benchmark, comes last. Raises UsageError where that fails."""
        plan = {**asdict(self), "folder": str(self.folder)}
        write_file(self.folder / "config.yaml", config_text.encode())
        for point, run_dir in run_dirs.items():
            self.point_to(point, run_dir)
        write_file(self.description, f"{json.dumps(plan, indent=1)}\n".encode())

    def point_to(self, point: PrecisionRun, run_dir: Path) -> None:
        """Note the run directory of a point, in one step. Raises UsageError."""
        content = f"{run_dir.relative_to(self.folder)}\n".encode()
        write_file(self.folder / "points" / point.folder_name / "run", content)


def find_bench(target: str, benches_dir: Path) -> Bench:
    """The benchmark that `target` means: its folder, or a name (its newest one). Raises UsageError
    where there is none, or its `bench.json` is damaged."""
    named = benches_dir / target
    newest = sorted(named.glob("[0-9]*/bench.json"))[-1:] if os.path.isdir(named) else []
    for description in (Path(target) / "bench.json", named / "bench.json", *newest):
        if os.path.isfile(description):  # False, too, for names that no file can have
            return _read(description.resolve())
    raise UsageError(
        f"there is no benchmark {target!r}: neither a benchmark's folder, nor a name in "
        f"{benches_dir}",
        hint="--benches-dir looks elsewhere",
    )


def _read(path: Path) -> Bench:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _bench(path.parent, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise UsageError(f"{path} does not describe a benchmark: {error} is missing") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} does not describe a benchmark: {error}") from None


def _bench(folder: Path, content: Any) -> Bench:
    precisions = content["precisions"]
    if not precisions or not all(isinstance(name, str) for name in precisions):
        raise TypeError("precisions is not a list of names")
    counts = {key: int(content[key]) for key in ("repeats", "warmup", "steps")}
    return Bench(
        folder=folder,
        name=str(content["name"]),
        precisions=tuple(precisions),
        created=str(content["created"]),
        gpus=bool(content["gpus"]),
        workdir=content.get("workdir"),
        overrides=tuple(map(str, content.get("overrides", ()))),
        site=content.get("site"),
        **counts,
    )
