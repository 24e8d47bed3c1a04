"""What rank 0 reports: lines for people, metrics.jsonl, TensorBoard, and the progress file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_amp.distributed.world import World
from hpc_amp.train.rundir import RunDirectory, write_json


class Tracker:
    """Writes on rank 0 and does nothing elsewhere.

    On a resume the curves go on from `start_step`: lines of metrics.jsonl beyond it are cut, and
    TensorBoard is told to forget its points (`purge_step`), so that no step stands there twice.
    """

    def __init__(self, run: RunDirectory, world: World, *, start_step: int) -> None:
        self._active = world.is_main
        self._run = run
        if not self._active:
            return
        _cut_after(run.path / "metrics.jsonl", start_step)
        self._metrics = (run.path / "metrics.jsonl").open("a", buffering=1)
        self._board = self._open_board(run.path / "tensorboard", start_step)

    def _open_board(self, folder: Path, start_step: int) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            self.say(f"WARNING: no TensorBoard files will be written: {error}")
            return None
        purge = start_step + 1 if start_step else None
        return SummaryWriter(str(folder), purge_step=purge, flush_secs=10)

    def say(self, line: str) -> None:
        """A line for people, on standard output."""
        if self._active:
            print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Points of curves at `step`: a line of metrics.jsonl and TensorBoard scalars."""
        if not self._active:
            return
        line = {"step": step, "time": round(time.time(), 3), **values}
        self._metrics.write(json.dumps(line) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def progress(self, **facts: Any) -> None:
        """Overwrite the progress file of this attempt, which `status` reads."""
        if self._active:
            write_json(self._run.attempt_path / "progress.json", {"time": time.time(), **facts})

    def close(self) -> None:
        """Flush and close everything."""
        if self._active:
            self._metrics.close()
            if self._board is not None:
                self._board.close()


def _cut_after(path: Path, step: int) -> None:
    """Drop the lines of a metrics file that belong to steps beyond `step`, and a torn last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            continue
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("".join(kept))
    os.replace(temporary, path)
