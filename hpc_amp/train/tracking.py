"""The reports of rank 0: lines in the log, metrics.jsonl, trackers, and the progress file."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpc_amp.distributed.world import World
from hpc_amp.files import write_atomically, write_json
from hpc_amp.trackers.registry import TRACKERS, missing
from hpc_amp.trackers.run import configuration
from hpc_amp.trackers.thread import TrackerThread
from hpc_amp.train.rundir import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor

    from hpc_amp.trackers.base import Tracker

LARGEST_ANIMATION = 1024
"""Pixels of the longer side of a moving picture, at most."""
MILLISECONDS = 120
"""How long a moving picture shows each frame."""


class Tracking:
    """Writes reports on rank 0, and does nothing on other ranks.

    `start_step`: the step that this attempt resumes from. Later lines of metrics.jsonl are removed,
    and trackers get the number of the next step, so that no step is reported twice.
    `evaluated`: whether the checkpoint includes the evaluation of `start_step`. If not, that
    evaluation is removed as well, because it will be repeated.
    `trackers`: names of trackers (`hpc_amp.trackers`).

    With attempt number 0, which only looks at a run that another attempt may be working on, nothing
    is written but lines in the log.

    If the disk is full or a tracker fails, reports are incomplete and the run goes on.
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
        self._trackers: dict[str, TrackerThread] = {}
        again: list[dict[str, Any]] | None = None
        with self._unless_disk_is_full():
            again = _cut_after(run.path / "metrics.jsonl", start_step, evaluated)
        with self._unless_disk_is_full():
            self._metrics = (run.path / "metrics.jsonl").open("a", buffering=1)
        first_step = start_step + 1 if again is None else start_step
        for name in trackers:
            problem = missing(name)
            if problem is None:
                self._trackers[name] = self._start(name, first_step)
            else:
                self._is_not_used(name, problem)
        config = configuration(run.path)
        if config:
            self._call("configuration", config)
        for line in again or ():
            self._to_trackers(line)

    def _start(self, name: str, first_step: int) -> TrackerThread:
        def opened(tracker: Tracker) -> None:
            if tracker.where:
                self.say(f"{name}: curves go to {tracker.where}")

        return TrackerThread(
            name,
            lambda: TRACKERS.get(name)(self._run.path, first_step),
            opened=opened,
            incomplete=self._complain,
            failed=lambda why: self._is_not_used(name, why),
        )

    def _to_trackers(self, line: Mapping[str, Any]) -> None:
        values = {name: value for name, value in line.items() if name not in ("step", "time")}
        self._call("report", line["step"], line["time"], values)

    def _call(self, method: str, *arguments: Any) -> None:
        for tracker in self._trackers.values():
            tracker.call(method, *arguments)

    def say(self, line: str) -> None:
        """Print a line to standard output, with the time."""
        if self._speaks:
            with contextlib.suppress(OSError):
                print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Report values of curves at `step`: as a line of metrics.jsonl, and to the trackers."""
        if not self._active:
            return
        line = {"step": step, "time": round(time.time(), 3), **values}
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.write(json.dumps(line) + "\n")
        self._to_trackers(line)

    def pictures(self, step: int, images: Tensor | None, name: str = "samples") -> None:
        """Report images [N, C, H, W] with values from 0 to 1, made at `step`, as one picture: in
        NAME/step-XXXXXXXX.png, and to the trackers."""
        if not self._active or images is None:
            return
        from PIL import Image

        grid = picture_of(images.nan_to_num()).cpu()  # NaN becomes black
        pixels = (grid * 255 + 0.5).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        with self._unless_disk_is_full():
            folder = self._run.path / name
            folder.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / f"step-{step:08d}.png")
        self._call("picture", step, name, grid)

    def animation(self, step: int, frames: Tensor | None) -> None:
        """Report a moving picture of frames [T, 3, H, W] with values from 0 to 1, made at `step`:
        in samples/step-XXXXXXXX.gif, and to the trackers as `video`."""
        if not self._active or frames is None:
            return
        gif = _encode_gif(frames)
        with self._unless_disk_is_full():
            folder = self._run.path / "samples"
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"step-{step:08d}.gif", gif)
        self._call("animation", step, "video", gif)

    def protocol(self, **facts: Any) -> None:
        """Overwrite protocol.json, which says how the metrics of the last evaluation were
        measured."""
        if self._active:
            with self._unless_disk_is_full():
                write_json(self._run.path / "protocol.json", facts)

    def progress(self, **facts: Any) -> None:
        """Overwrite the progress file of this attempt, which `hpc-amp status` reads. It is written
        at most four times a second, because writing a file takes as long as many small steps."""
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

    def _is_not_used(self, name: str, why: str) -> None:
        self.say(
            f"WARNING: the tracker {name} is not used: {why}; training goes on, and metrics.jsonl "
            "has all curves"
        )

    def end(self, outcome: str) -> None:
        """Tell the trackers how the attempt has ended (see `Tracker.end`)."""
        if self._active:
            self._call("end", outcome)

    def close(self, seconds: float = 60.0) -> None:
        """Write the last progress, and close all files and trackers. `seconds`: how long trackers
        may take for what they have not written yet."""
        if not self._active:
            return
        if self._progress:
            self._write_progress()
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.close()
        for tracker in self._trackers.values():
            tracker.ask_to_close()
        until = time.monotonic() + seconds
        for name, tracker in self._trackers.items():
            if not tracker.wait(until):
                self.say(
                    f"WARNING: the tracker {name} has not written everything within {seconds:g} "
                    "seconds; metrics.jsonl has all curves"
                )


def _encode_gif(frames: Tensor) -> bytes:
    """A GIF of frames [T, 3, H, W] with values from 0 to 1; large ones are made smaller."""
    import torch.nn.functional as F
    from PIL import Image

    frames = frames.float().nan_to_num().clamp(0, 1)  # NaN becomes black
    scale = LARGEST_ANIMATION / max(frames.shape[2:])
    if scale < 1:
        size = [max(1, int(side * scale)) for side in frames.shape[2:]]
        frames = F.interpolate(frames, size, mode="area")
    pixels = frames.mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    first, *rest = (Image.fromarray(frame).quantize() for frame in pixels)
    content = io.BytesIO()
    first.save(
        content, "GIF", save_all=True, append_images=rest, duration=MILLISECONDS, loop=0, disposal=1
    )
    return content.getvalue()


def _cut_after(path: Path, step: int, evaluated: bool) -> list[dict[str, Any]] | None:
    """Remove the lines of a metrics file that are incomplete or belong to steps after `step`, and
    the evaluation of `step` unless it is `evaluated`. If that evaluation was removed, returns the
    other lines of `step`; otherwise None."""
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
    write_atomically(path, "".join(kept))
    return rest if dropped else None


def picture_of(images: Tensor) -> Tensor:
    """Images [N, C, H, W] side by side in one picture [3, height, width], in about as many rows as
    columns, with 2 black pixels around each. A single image is the picture itself. C is 1 or 3."""
    images = images.expand(-1, 3, -1, -1)
    number, _, height, width = images.shape
    if number == 1:
        return images[0]
    columns = math.ceil(math.sqrt(number))
    rows = math.ceil(number / columns)
    picture = images.new_zeros(3, 2 + rows * (height + 2), 2 + columns * (width + 2))
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        top, left = 2 + row * (height + 2), 2 + column * (width + 2)
        picture[:, top : top + height, left : left + width] = image
    return picture
