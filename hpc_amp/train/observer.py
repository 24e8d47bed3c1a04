"""Seeing a training from inside: for curves, files and checks of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hpc_amp.amp.precision import PrecisionPolicy
    from hpc_amp.config.schema import Train
    from hpc_amp.distributed.world import World
    from hpc_amp.tasks.base import Task, TrainingData
    from hpc_amp.train.checkpoint import CheckpointStore
    from hpc_amp.train.ema import WeightAverage
    from hpc_amp.train.pace import Pace
    from hpc_amp.train.schedule import RateFactor
    from hpc_amp.train.tracking import Tracking
    from hpc_amp.train.update import PhaseUpdate


class Training(Protocol):
    """The engine (`hpc_amp.train.engine`) as observers, reports and checkpoints see it."""

    task: Task
    train: Train
    """The settings."""
    world: World
    device: torch.device
    observers: Sequence[Observer]
    rate: RateFactor
    policy: PrecisionPolicy
    data: TrainingData
    store: CheckpointStore
    networks: dict[str, nn.Module]
    """The networks that are trained, by name, without the wrapper for several ranks."""
    average: WeightAverage | None
    updates: list[PhaseUpdate]
    step: int
    """Steps that are done."""
    total_steps: int
    metrics: dict[str, float]
    """Those of the last evaluation."""
    evaluated_step: int
    """The step of the last evaluation; -1 before the first."""
    best_value: float | None
    seconds_before: float
    """Seconds of training in earlier attempts."""
    tracker: Tracking
    pace: Pace

    @property
    def seconds(self) -> float:
        """Seconds of training over all attempts."""

    def train_step(self, micro_batches: list[Any]) -> None:
        """One step: every phase of its epoch once, on this rank's share of one global batch."""

    def resume_clocks(self) -> None:
        """Measure time again, after something that is not a training."""


class Observer:
    """Is told of a training as it goes. Override what you need.

    Every rank calls every method after the same steps, so an observer may use collective
    operations; what it writes, rank 0 alone should write (`engine.world.is_main`).
    """

    def begin(self, engine: Training) -> None:
        """Before the first step of this attempt; a resume has been done (`engine.step`)."""

    def reported(self, engine: Training, values: Mapping[str, float]) -> None:
        """Every `log_every` steps, with what stands in metrics.jsonl: the losses are means over
        the ranks and over the steps since the last time."""

    def evaluated(self, engine: Training) -> None:
        """After an evaluation, whose result is in `engine.metrics`."""

    def end(self, engine: Training) -> None:
        """After the last step of this attempt, before its checkpoint is saved. Not called where an
        error ended it."""
