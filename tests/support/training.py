"""Small trainings for tests: a task on random vectors, and an engine around any task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.config.schema import Train, from_plain
from hpc_amp.data.order import generator
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Best, Losses, Networks, Phase, Task, TrainingData
from hpc_amp.tasks.registry import config_class
from hpc_amp.train.engine import Engine
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopReason, StopWatch

CPU = torch.device("cpu")
FEATURES = 6
STEPS_PER_EPOCH = 5

opened: list[Engine] = []
"""Engines whose files a fixture closes after the test."""


class Vectors(TrainingData):
    """Random inputs, each step's from (seed, epoch, step) alone."""

    def __init__(self, train: Train) -> None:
        self.train = train
        self.steps_per_epoch = STEPS_PER_EPOCH
        self.samples = STEPS_PER_EPOCH * train.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Tensor]]:
        for step in range(start, self.steps_per_epoch):
            stream = generator(self.train.seed, epoch, step)
            batch = torch.randn(self.train.batch_size, FEATURES, generator=stream)
            yield list(batch.chunk(self.train.accumulate))


class Regression(Task):
    """Learns the mean of its inputs, with dropout so that the global random stream matters."""

    name: ClassVar[str] = "regression"
    best: ClassVar[Best | None] = Best("accuracy", "highest")
    data_name = "vectors"

    def prepare_data(self) -> TrainingData:
        return Vectors(self.train)

    def build_networks(self) -> dict[str, nn.Module]:
        layers = nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
        return {"model": nn.Sequential(*layers)}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("train", ("model",), ("loss",), self.train.optimizer),)

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        yield {"loss": self.error(batch, networks).square().mean()}

    def error(self, batch: Tensor, networks: Networks) -> Tensor:
        return networks["model"](batch)[:, 0] - batch.mean(1)

    def evaluation_batches(self) -> Iterator[Tensor]:
        yield torch.randn(7, FEATURES, generator=generator("test"))

    def evaluate(self, batch: Any, networks: Networks) -> dict[str, Tensor]:
        return {"squares": self.error(batch, networks).square().sum(dtype=torch.float64)}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        error = sums["squares"] / 7
        return {"error": error, "accuracy": 1 / (1 + error)}


SHORT = {"precision": "mode", "schedule": "name", "optimizer": "name", "checkpoint": "every"}


def settings(**train: Any) -> Train:
    """A configuration with small numbers. `precision="fp16"` is short as in a job file."""
    small = {"epochs": 2, "batch_size": 8, "log_every": 1, "checkpoint": "100epochs"}
    plain = {**small, **train}
    for key in SHORT.keys() & plain.keys():
        if isinstance(plain[key], str):
            plain[key] = {SHORT[key]: plain[key]}
    plain["checkpoint"] = {"keep_best": 0, **plain["checkpoint"]}
    task = plain.get("task", "dcgan" if "gan" in plain else "classification")
    return from_plain(config_class(task), plain)


def engine(
    folder: Path,
    task: type[Task] = Regression,
    /,
    *,
    attempt: int = 1,
    watch: StopWatch | None = None,
    **train: Any,
) -> Engine:
    """An engine on one rank whose run directory is `folder`, with the checkpoints found there."""
    config = settings(**train)
    run = RunDirectory(folder, attempt)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    watch = watch or StopWatch(stop_at=None, stop_file=run.stop_file)
    made = Engine(task(config, World(), CPU), config, World(), CPU, run, watch)
    opened.append(made)
    return made


def fit_until(made: Engine, step: int) -> None:
    """Train until `step`, where a stop is asked for and agreed."""

    def look() -> StopReason:
        return StopReason.ASKED if made.step >= step else StopReason.NONE

    made.agreement.due = lambda step: True  # type: ignore[method-assign]
    made.agreement.watch.look = look  # type: ignore[method-assign]
    assert made.fit() is StopReason.ASKED
    assert made.step == step
    made.tracker.close()


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """The points of one curve in metrics.jsonl, as (step, value)."""
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines if name in line]
