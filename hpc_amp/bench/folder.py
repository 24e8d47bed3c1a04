"""The folder of a benchmark: what it plans, and which run measures which point.

benches/<name>/<UTC time>-<4 letters>/
    bench.json              name, precisions, repeats, warmup, steps, created, gpus
    config.yaml             the job, as given
    bench.sh, logs/         the script that runs all points, and what it says
    runs/<name>/<run id>/   a run directory for each point
    points/fp16-r02/run     the path from here of the run directory of the second run in fp16
    report/                 table, JSON and picture
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError


@dataclass(frozen=True, slots=True)
class Point:
    """One run: its precision, and which repeat it is (from 1 on)."""

    precision: str
    repeat: int

    @property
    def folder_name(self) -> str:
        """Its folder in `points`."""
        return f"{self.precision}-r{self.repeat:02d}"


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark as it was planned. `gpus`: whether its job asks for any."""

    folder: Path
    name: str
    precisions: tuple[str, ...]
    repeats: int
    warmup: int
    steps: int
    created: str
    gpus: bool

    @property
    def points(self) -> list[Point]:
        """In the order in which they run: every precision once, then again, so that what changes
        with time meets all of them alike."""
        return [
            Point(precision, repeat)
            for repeat in range(1, self.repeats + 1)
            for precision in self.precisions
        ]

    def run_dir(self, point: Point) -> Path:
        """The run directory of a point. Raises UsageError where the folder is damaged."""
        path = self.folder / "points" / point.folder_name / "run"
        try:
            return self.folder / path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None

    @property
    def script(self) -> Path:
        """What runs all points."""
        return self.folder / "bench.sh"

    def write(self, config_text: str, script: str, run_dirs: dict[Point, Path]) -> None:
        """Make the folder, without the run directories. Raises UsageError where that fails."""
        try:
            (self.folder / "logs").mkdir(parents=True)
            plan = {**asdict(self), "folder": str(self.folder)}
            (self.folder / "bench.json").write_text(json.dumps(plan, indent=1) + "\n")
            (self.folder / "config.yaml").write_text(config_text)
            self.script.write_text(script)
            self.script.chmod(0o755)
            for point, run_dir in run_dirs.items():
                place = self.folder / "points" / point.folder_name
                place.mkdir(parents=True)
                (place / "run").write_text(f"{run_dir.relative_to(self.folder)}\n")
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be made: {error.strerror}") from None


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
    except (KeyError, TypeError, ValueError, RecursionError) as error:
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
        **counts,
    )
