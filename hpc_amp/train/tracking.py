"""What rank 0 reports: lines for people, metrics.jsonl, TensorBoard, and the progress file."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hpc_amp.distributed.world import World
from hpc_amp.train.rundir import RunDirectory, replace_text, write_json

if TYPE_CHECKING:
    from torch import Tensor


class Tracker:
    """Writes on rank 0 and does nothing elsewhere.

    On a resume the curves go on from `start_step`: lines of metrics.jsonl beyond it are cut, and
    TensorBoard is told to forget its points (`purge_step`), so that no step stands there twice. So
    is an evaluation of that step, unless it is `evaluated`: it is not in the checkpoint then, and
    will be done again.

    Attempt 0 is none: it only looks at a run, on which an attempt may be at work, and writes
    nothing but lines for people.

    A disk that is full costs reports, not the run.
    """

    def __init__(
        self, run: RunDirectory, world: World, *, start_step: int, evaluated: bool = True
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
        self._board: Any = None
        again: list[dict[str, Any]] | None = None
        with self._unless_disk_is_full():
            again = _cut_after(run.path / "metrics.jsonl", start_step, evaluated)
        with self._unless_disk_is_full():
            self._metrics = (run.path / "metrics.jsonl").open("a", buffering=1)
        with self._unless_disk_is_full():
            purge_step = start_step + 1 if again is None else start_step
            self._board = self._open_board(run.path / "tensorboard", purge_step)
        for line in again or ():
            self._add_to_board(line)

    def _open_board(self, folder: Path, purge_step: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            self.say(f"WARNING: no TensorBoard files will be written: {error}")
            return None
        # Also at the beginning: an attempt before may have died before its first checkpoint.
        return SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)

    def _add_to_board(self, line: Mapping[str, Any]) -> None:
        if self._board is not None:
            with self._unless_disk_is_full():
                for name, value in line.items():
                    if name not in ("step", "time"):
                        self._board.add_scalar(name, value, line["step"])

    def say(self, line: str) -> None:
        """A line for people, on standard output."""
        if self._speaks:
            with contextlib.suppress(OSError):
                print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Points of curves at `step`: a line of metrics.jsonl and TensorBoard scalars."""
        if not self._active:
            return
        line = {"step": step, "time": round(time.time(), 3), **values}
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.write(json.dumps(line) + "\n")
        self._add_to_board(line)

    def pictures(self, step: int, images: Tensor | None) -> None:
        """Images [N, C, H, W] from 0 to 1 made at `step`, as one picture: in TensorBoard, and in
        samples/step-XXXXXXXX.png."""
        if not self._active or images is None:
            return
        from torchvision.utils import make_grid, save_image

        images = images.nan_to_num()  # a picture of lost weights is black
        grid = make_grid(images, nrow=math.ceil(math.sqrt(len(images))))
        with self._unless_disk_is_full():
            folder = self._run.path / "samples"
            folder.mkdir(exist_ok=True)
            save_image(grid, folder / f"step-{step:08d}.png")
        if self._board is not None:
            with self._unless_disk_is_full():
                self._board.add_image("samples", grid, step)

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
            if not self._complained:
                self.say(f"WARNING: reports are incomplete: {error}; training goes on")
            self._complained = True

    def close(self) -> None:
        """Flush and close everything."""
        if not self._active:
            return
        if self._progress:
            self._write_progress()
        if self._metrics is not None:
            with self._unless_disk_is_full():
                self._metrics.close()
        if self._board is not None:
            with self._unless_disk_is_full():
                self._board.close()


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
