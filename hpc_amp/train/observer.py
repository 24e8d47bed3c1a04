"""Observers: the interface for curves, files and checks of the user's own."""

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
    """The interface of the engine (`hpc_amp.train.engine`) for observers, reports and
    checkpoints."""

    task: Task
    train: Train
    """The settings of the training."""
    world: World
    device: torch.device
    observers: Sequence[Observer]
    rate: RateFactor
    policy: PrecisionPolicy
    data: TrainingData
    store: CheckpointStore
    networks: dict[str, nn.Module]
    """The networks that are trained, by name, without DDP's wrapper."""
    average: WeightAverage | None
    updates: list[PhaseUpdate]
    step: int
    """The number of completed steps."""
    total_steps: int
    metrics: dict[str, float]
    """The metrics of the last evaluation."""
    evaluated_step: int
    """The step of the last evaluation; -1 before the first."""
    best_value: float | None
    warnings: dict[str, str]
    """What `Task.concerns` has said so far in the run, by its cause."""
    seconds_before: float
    """Seconds of training in earlier attempts."""
    tracker: Tracking
    pace: Pace

    @property
    def seconds(self) -> float:
        """Seconds of training in all attempts of the run."""

    def train_step(self, micro_batches: list[Any]) -> None:
        """Run one step: each phase of the epoch once, on this rank's share of a global batch."""

    def resume_clocks(self) -> None:
        """Measure speed and step times again after something that is not training."""


class Observer:
    """Base class for code that follows a training. Override the methods that you need.

    Every rank calls each method after the same steps, so an observer may use collective operations.
    Only rank 0 should write files (`engine.world.is_main`).
    """

    def begin(self, engine: Training) -> None:
        """Called before the first step of this attempt, after a checkpoint was restored."""

    def reported(self, engine: Training, values: Mapping[str, float]) -> None:
        """Called every `log_every` steps with the values of metrics.jsonl. Losses are means over
        all ranks and over the steps since the last report."""

    def evaluated(self, engine: Training) -> None:
        """Called after an evaluation. `engine.metrics` has the result."""

    def end(self, engine: Training) -> None:
        """Called after the last step of this attempt, before its checkpoint is saved. Not called if
        an error ends the attempt."""
