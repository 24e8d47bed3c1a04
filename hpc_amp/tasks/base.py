"""The contract between a task and the engine.

A task says *what*: networks, data, losses, metrics. The engine (`hpc_amp.train`) says *how*:
devices, DDP, autocast, loss scaling, accumulation, clipping, checkpoints, stopping. Nothing here
assumes one network, one optimizer or one loss: a step is a sequence of phases, each of which
updates some networks with one optimizer from any number of losses, of one or several forward
passes. A classification has one phase; a GAN has two (discriminator, generator).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hpc_amp.config.schema import Optimizer, Train
from hpc_amp.data.errors import DataError as DataError
from hpc_amp.distributed.world import World

Networks = Mapping[str, nn.Module]
Losses = Mapping[str, Tensor]
"""The scalar losses of one forward pass, by name."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One optimizer update within a step.

    Names are unique in a task: those of phases, and those of losses. Each entry of `losses` has a
    backward pass and a loss scaler of its own, so one that overflows does not shrink the scale of
    the others.
    """

    name: str
    networks: tuple[str, ...]
    """The networks that it updates. All others are frozen meanwhile: none of their weights gets a
    gradient."""
    losses: tuple[str | tuple[str, ...], ...]
    """A name, or the names of several losses of one forward pass: these are added up, and share a
    backward pass and a loss scaler."""
    optimizer: Optimizer
    weights: Mapping[str, float] = field(default_factory=dict)
    """What a loss is multiplied by in training, 1 where nothing is said. Curves show the loss
    itself."""
    separate_scalers: bool = False
    """Give each loss of a shared forward pass a backward pass and a scaler of its own. Costs as
    many backward passes; the exchange between the ranks does not overlap with them, and is not in
    the measured time of communication."""
    begins: int = 0
    """The first epoch in which it runs, counted from 0."""
    ends: int | None = None
    """The first epoch in which it does not run any more; None: it runs to the end."""
    every: int = 1
    """It runs in each `every`-th step of the run: with 5, in the steps 5, 10, 15, ..."""

    def runs_in(self, epoch: int) -> bool:
        """Whether `epoch` (counted from 0) has this phase."""
        return self.begins <= epoch and (self.ends is None or epoch < self.ends)

    def runs_at(self, step: int, epoch: int) -> bool:
        """Whether `step` (counted from 0) of `epoch` runs this phase."""
        return self.runs_in(epoch) and (step + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class Best:
    """A metric of `Task.summarize`, and which of its values is the best."""

    metric: str
    direction: Literal["highest", "lowest"]

    def better(self, value: float | None, other: float | None) -> float | None:
        """The better of two values. None and what is not finite are worse than any number."""
        if value is None or not math.isfinite(value):
            return other
        if other is None:
            return value
        return max(value, other) if self.direction == "highest" else min(value, other)


class TrainingData(ABC):
    """Training batches by position, so that a resume at any step costs the same.

    The order of epoch e is a permutation that depends on (seed, e) alone; global batch i is the
    permutation's slice [i * B, (i + 1) * B), and rank r takes the r-th of `world.size` equal parts.
    The samples of a step are therefore the same for every world size. A last incomplete batch is
    dropped.
    """

    samples: int
    steps_per_epoch: int

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Any]]:
        """This rank's share of each global batch of `epoch` from step `start` on, on the device,
        as a list of `accumulate` equal micro-batches."""

    def close(self) -> None:  # noqa: B027
        """End what helps with the data; neither training nor test data is asked for any more."""


class Task(ABC):
    """Base class of all tasks. Constructed on every rank with the same configuration."""

    name: ClassVar[str] = ""
    """What messages call it. Default: the name of the class itself, not that of a base class."""
    best: ClassVar[Best | None] = None
    """The metric that tells the better of two checkpoints. Without one, `checkpoint.keep_best`
    keeps none."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, train: Train, world: World, device: torch.device) -> None:
        self.train = train
        self.world = world
        self.device = device

    data_name: str = ""
    """What the run reports as its data, such as `CIFAR-10`. Set by `prepare_data`."""
    synthetic: bool = False
    """Whether the data is synthetic. Set by `prepare_data`."""
    trained: Networks
    """The networks that are trained, on the device. Set by the engine, before the training; what
    an evaluation is given may be their average instead."""

    @property
    def title(self) -> str:
        """What the log calls that which is trained, such as the name of a network."""
        return self.name

    @abstractmethod
    def prepare_data(self) -> TrainingData:
        """Find, download or make the data. Called once on every rank, with the process group up;
        a task that downloads does so on rank 0 and lets the others wait. Raises DataError."""

    @abstractmethod
    def build_networks(self) -> dict[str, nn.Module]:
        """The networks, on the CPU, initialised from the global generator that the engine seeded
        equally on every rank. Called after `prepare_data`."""

    def first_weights(self) -> dict[str, str]:
        """Files of weights that networks begin a run with, by the name of the network. A run that
        has a checkpoint needs them no longer."""
        return {}

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The updates of one step, in order. Each epoch has at least one."""

    @abstractmethod
    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        """Yield the losses of one micro-batch, once for each entry of the phase's `losses`, in any
        order. The engine runs this generator under autocast and calls backward between two yields,
        so several forward passes of one network with a backward each are safe under DDP. A network
        that only makes samples for another one's loss is called under `torch.no_grad()`. Losses are
        means over the micro-batch. Parameters are changed by the optimizer alone: a checkpoint may
        be copying them meanwhile."""

    @abstractmethod
    def evaluation_batches(self) -> Iterator[Any]:
        """This rank's share of the test data, on the device. Shares may be uneven."""

    @abstractmethod
    def evaluate(self, batch: Any, networks: Networks) -> dict[str, Tensor]:
        """Sums over one evaluation batch (float64 or int64 scalars), always with the same keys. The
        engine adds them up over batches and ranks. Runs without gradient and under autocast."""

    def pictures(self, networks: Networks) -> Tensor | None:
        """Images [N, C, H, W] from 0 to 1 that show what the networks make, or None. Called after
        an evaluation, on rank 0 alone, without gradient and under autocast."""
        return None

    @abstractmethod
    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """Metrics from the added sums, such as `accuracy` and `loss`."""


class ModelError(ValueError):
    """There is no such network, or it lacks a setting. The message is for the user."""
