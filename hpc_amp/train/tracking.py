"""What rank 0 reports: lines for people, metrics.jsonl, trackers, and the progress file."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpc_amp.distributed.world import World
from hpc_amp.trackers.registry import TRACKERS
from hpc_amp.train.rundir import RunDirectory, replace_text, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from hpc_amp.trackers.base import Tracker


class Tracking:
    """Writes on rank 0 and does nothing elsewhere.

    `trackers` are names of `hpc_amp.trackers`. On a resume the curves go on from `start_step`:
    lines of metrics.jsonl beyond it are cut, and trackers are told the first step that is to come,
    so that no step stands there twice. So is an evaluation of that step, unless it is `evaluated`:
    it is not in the checkpoint then, and will be done again.

    Attempt 0 is none: it only looks at a run, on which an attempt may be at work, and writes
    nothing but lines for people.

    A disk that is full, or a tracker that fails, costs reports, not the run.
    """

    def __init__(
        self,
        run: RunDirectory,
        world: World,
        *,
        start_step: int,
        evaluated: bool = True,
        trackers: Sequence[str] = (),
    ) -> None:
        self._speaks = world.is_main
        self._active = world.is_main and run.attempt > 0
        self._run = run
        self._complained = False
        self._progress: dict[str, Any] = {}
        self._next_progress = 0.0
        if not self._active:
            return
        self._metrics: TextIO | None = None
        self._trackers: dict[str, Tracker] = {}
        again: list[dict[str, Any]] | None = None
        with self._unless_disk_is_full():
            again = _cut_after(run.path / "metrics.jsonl", start_step, evaluated)
        with self._unless_disk_is_full():
            self._metrics = (run.path / "metrics.jsonl").open("a", buffering=1)
        first_step = start_step + 1 if again is None else start_step
        for name in trackers:
            with self._unless_it_fails(name):
                self._trackers[name] = TRACKERS.get(name)(run.path, first_step)
        for line in again or ():
            self._to_trackers(line)

    def _to_trackers(self, line: Mapping[str, Any]) -> None:
        values = {name: value for name, value in line.items() if name not in ("step", "time")}
        for name, tracker in list(self._trackers.items()):
            with self._unless_it_fails(name):
                tracker.scalars(line["step"], values)

    def say(self, line: str) -> None:
        """A line for people, on standard output."""
        if self._speaks:
            with contextlib.suppress(OSError):
                print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Points of curves at `step`: a line of metrics.jsonl, and for the trackers."""
        if not self._active:
            return
        line = {"step": step, "time": round(time.time(), 3), **values}
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.write(json.dumps(line) + "\n")
        self._to_trackers(line)

    def pictures(self, step: int, images: Tensor | None) -> None:
        """Images [N, C, H, W] from 0 to 1 made at `step`, as one picture: in
        samples/step-XXXXXXXX.png, and for the trackers."""
        if not self._active or images is None:
            return
        from torchvision.utils import make_grid, save_image

        images = images.nan_to_num()  # a picture of lost weights is black
        grid = make_grid(images, nrow=math.ceil(math.sqrt(len(images))))
        with self._unless_disk_is_full():
            folder = self._run.path / "samples"
            folder.mkdir(exist_ok=True)
            save_image(grid, folder / f"step-{step:08d}.png")
        for name, tracker in list(self._trackers.items()):
            with self._unless_it_fails(name):
                tracker.picture(step, "samples", grid)

    def progress(self, **facts: Any) -> None:
        """Overwrite the progress file of this attempt, which `status` reads. It follows within a
        quarter of a second of training: a file costs as much as many small steps."""
        if self._active:
            self._progress = {"time": time.time(), **facts}
            if time.monotonic() >= self._next_progress:
                self._write_progress()
                self._next_progress = time.monotonic() + 0.25

    def _write_progress(self) -> None:
        with self._unless_disk_is_full():
            write_json(self._run.attempt_path / "progress.json", self._progress)

    @contextlib.contextmanager
    def _unless_disk_is_full(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self.say(f"WARNING: reports are incomplete: {error}; training goes on")
        self._complained = True

    @contextlib.contextmanager
    def _unless_it_fails(self, name: str) -> Iterator[None]:
        """A tracker that fails is left out from then on. It may be anybody's and raise anything."""
        try:
            yield
        except OSError as error:
            self._complain(error)
        except Exception as error:
            self._trackers.pop(name, None)
            text = " ".join(str(error).split())
            self.say(
                f"WARNING: the tracker {name} is not used: {type(error).__name__}: {text}; "
                "training goes on"
            )

    def close(self) -> None:
        """Flush and close everything."""
        if not self._active:
            return
        if self._progress:
            self._write_progress()
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.close()
        for name, tracker in list(self._trackers.items()):
            with self._unless_it_fails(name):
                tracker.close()


def _cut_after(path: Path, step: int, evaluated: bool) -> list[dict[str, Any]] | None:
    """Drop the lines of a metrics file that belong to steps beyond `step`, and torn ones; the
    evaluation of `step`, too, unless it is `evaluated`. Where there was one, returns what else
    there is of that step."""
    if not path.exists():
        return None
    kept, rest, dropped = [], [], False
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
            if line["step"] > step:
                continue
            if line["step"] == step and not evaluated:
                if any(name.startswith("eval/") for name in line):
                    dropped = True
                    continue
                rest.append(line)
        except (ValueError, KeyError, TypeError):
            continue
        kept.append(f"{text}\n")
    replace_text(path, "".join(kept))
    return rest if dropped else None
