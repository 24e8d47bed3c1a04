"""What a scenario records: curves in TensorBoard and as arrays, and weights."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from classifier import hits
from scenario import Scenario
from torch import Tensor

from hpc_amp.train import Observer
from hpc_amp.train.errors import TrainingError

TRAINING = {
    "TrainingLoss": "Loss/Training",
    "TrainingTop1": "Top1/Training",
    "TrainingTop5": "Top5/Training",
    "GradNorm": "Optim/Gradient_Norm",
    "Learning_Rate": "Optim/lr",
}
"""Curves with one point for each step: the name of the array, and the tag in TensorBoard."""
TEST = {"TestLoss": "Loss/Test", "TestTop1": "Top1/Test", "TestTop5": "Top5/Test"}
"""Curves with one point for each epoch."""


class Curves(Observer):
    """Records every step on the device, and writes when the engine reports. Rank 0 writes.

    Losses and accuracies are means over all ranks. The gradient norm of a step that was skipped
    because of an overflow is NaN. The curves of a resumed scenario continue. Steps that were made
    but not written before an attempt ended are NaN.
    """

    def __init__(self, flags: argparse.Namespace, scenario: Scenario) -> None:
        self.flags = flags
        self.scenario = scenario
        self.arrays: dict[str, list[float]] = {name: [] for name in (*TRAINING, *TEST)}
        self.board: Any = None

    # -- every step, on every rank ----------------------------------------------------------------

    def record(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Record the loss, and top-1 and top-5 accuracy in percent, of a step. If a step is
        recorded twice, which happens at the beginning of an attempt, the second time counts."""
        top1, top5 = (100 * hits(logits, labels, n).float().mean() for n in (1, 5))
        row = self._row()
        self.rows[row, :3] = torch.stack((loss.float(), top1, top5))
        self.rows[row, 3] = float("nan")

    def _record_norm(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Called before the optimizer's step, when gradients are unscaled."""
        groups = optimizer.param_groups
        norms = [p.grad.float().norm() for g in groups for p in g["params"] if p.grad is not None]
        self.rows[self._row(), 3] = torch.stack(norms).norm()

    def _row(self) -> int:
        return self.engine.step - self.written

    # -- from time to time ------------------------------------------------------------------------

    def begin(self, engine: Any) -> None:
        """Read what earlier attempts recorded."""
        epoch, into = divmod(engine.step, engine.data.steps_per_epoch)
        if self.flags.initial_epoch and (epoch, into) != (self.flags.initial_epoch, 0):
            raise TrainingError(
                f"--initial-epoch {self.flags.initial_epoch}: the checkpoint is of epoch {epoch}"
                + (f" and {into} steps" if into else "")
            )
        self.engine = engine
        self.written = engine.step
        self.rows = torch.zeros(engine.train.log_every, 4, device=engine.device)
        engine.updates[0].optimizer.register_step_pre_hook(self._record_norm)
        if not engine.world.is_main:
            return
        tested = epoch - (into == 0 and engine.evaluated_step != engine.step and epoch > 0)
        for name, values in self.arrays.items():
            values += _read(self.scenario.variable(name), tested if name in TEST else engine.step)
        self.board = _open_board(self.scenario.tensorboard, engine.step)
        if engine.step == 0:
            self._save_weights("saved_initialization", "initialization")

    def reported(self, engine: Any, values: Mapping[str, float]) -> None:
        """Write the steps since the last report."""
        self._write_steps()

    def evaluated(self, engine: Any) -> None:
        """Write the points of an epoch."""
        self._write_steps()
        if not engine.world.is_main:
            return
        metrics = engine.metrics
        epoch = -(-engine.step // engine.data.steps_per_epoch)
        points = (metrics["loss"], 100 * metrics["accuracy"], 100 * metrics["top5"])
        for (name, tag), value in zip(TEST.items(), points, strict=True):
            self.arrays[name].append(value)
            self._add(tag, value, epoch)
        self._write_arrays()
        if self.flags.save_epochs:
            self._save_weights("saved_epochs", f"epoch_{epoch:03d}")

    def end(self, engine: Any) -> None:
        """Write the remaining steps, and the weights if training is complete."""
        self._write_steps()
        if not engine.world.is_main:
            return
        self._write_arrays()
        if engine.step == engine.total_steps:
            self._save_weights("saved_end_of_training", "end_of_training")
        if self.board is not None:
            self.board.close()

    # -- files ------------------------------------------------------------------------------------

    def _write_steps(self) -> None:
        engine = self.engine
        count = engine.step - self.written
        rows = self.rows[:count].clone()
        if engine.world.size > 1:
            means = rows[:, :3].contiguous()
            dist.all_reduce(means)
            rows[:, :3] = means / engine.world.size
        if engine.world.is_main:
            for step, row in enumerate(rows.tolist(), self.written):
                lr = engine.train.optimizer.lr * engine.rate(step, engine.total_steps)
                for (name, tag), value in zip(TRAINING.items(), (*row, lr), strict=True):
                    self.arrays[name].append(value)
                    self._add(tag, value, step + 1)
        self.written = engine.step

    def _add(self, tag: str, value: float, position: int) -> None:
        if self.board is not None:
            self.board.add_scalar(tag, value, position)

    def _write_arrays(self) -> None:
        for name, values in self.arrays.items():
            _replace(
                self.scenario.variable(name), lambda file, v=values: np.save(file, np.array(v))
            )

    def _save_weights(self, when: str, prefix: str) -> None:
        weights = self.engine.networks["model"].state_dict()
        _replace(self.scenario.saved(when, prefix), lambda file: torch.save(weights, file))


def _read(path: Path, length: int) -> list[float]:
    """The first `length` values of an array. Missing ones are NaN."""
    values = np.load(path).tolist()[:length] if path.exists() else []
    return values + [float("nan")] * (length - len(values))


def _replace(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        write(file)
    os.replace(new, path)


def _open_board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"WARNING: no TensorBoard files in {folder}: {error}", flush=True)
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
