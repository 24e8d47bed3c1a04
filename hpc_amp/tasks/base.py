"""The interface between a task and the engine.

A task says *what* is trained: networks, data, losses, metrics. The engine (`hpc_amp.train`) decides
*how*: devices, DDP, autocast, loss scaling, accumulation, clipping, checkpoints, stopping. Nothing
here assumes one network, one optimizer or one loss. A step is a sequence of phases. Each phase
updates some networks with one optimizer, from any number of losses of one or several forward
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
from hpc_amp.errors import InputError

Networks = Mapping[str, nn.Module]
"""Networks by name. Those that the running phase updates are wrapped in DDP, if there are several
ranks."""
Losses = Mapping[str, Tensor]
"""The losses of one forward pass, by name: scalar tensors, means over the micro-batch."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One optimizer update within a step.

    The names of phases are unique in a task, and so are those of losses. Each entry of `losses` has
    a backward pass and a loss scaler of its own. If one overflows, the scales of the others stay.
    """

    name: str
    networks: tuple[str, ...]
    """The networks that it updates. All others are frozen during the phase: their weights get no
    gradients."""
    losses: tuple[str | tuple[str, ...], ...]
    """Each entry is the name of a loss, or the names of several losses of one forward pass. The
    losses of an entry are added up, and share a backward pass and a loss scaler."""
    optimizer: Optimizer
    weights: Mapping[str, float] = field(default_factory=dict)
    """By the name of a loss, the factor for it in training, by default 1. Curves show losses
    without their factors."""
    separate_scalers: bool = False
    """Whether each loss of an entry with several names gets a backward pass and a loss scaler of
    its own. This takes as many backward passes. The exchange between ranks follows them, and does
    not overlap with any."""
    begins: int = 0
    """The first epoch with this phase, counted from 0."""
    ends: int | None = None
    """The first epoch without it again. None: it runs to the end."""
    every: int = 1
    """It runs in each `every`-th step of the run: with 5, in the steps 5, 10, 15, ..."""

    def runs_in(self, epoch: int) -> bool:
        """Whether `epoch`, counted from 0, has this phase."""
        return self.begins <= epoch and (self.ends is None or epoch < self.ends)

    def runs_at(self, step: int, epoch: int) -> bool:
        """Whether `step` (counted from 0) of `epoch` runs this phase."""
        return self.runs_in(epoch) and (step + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class Best:
    """The metric that compares checkpoints: its name in the result of `Task.summarize`, and whether
    the highest or the lowest value is best."""

    metric: str
    direction: Literal["highest", "lowest"]

    def better(self, value: float | None, other: float | None) -> float | None:
        """The better of two values. None, infinity and NaN are worse than any number."""
        if value is None or not math.isfinite(value):
            return other
        if other is None:
            return value
        return max(value, other) if self.direction == "highest" else min(value, other)


class TrainingData(ABC):
    """Training batches by position, so that a resume at any step takes the same time.

    The order of epoch e is a permutation that only depends on (seed, e). Global batch i is its
    slice [i * B, (i + 1) * B), and rank r gets the r-th of `world.size` equal parts. So the samples
    of a step are the same for every world size. An incomplete last batch is dropped.

    `hpc_amp.data.order` has functions for this. Attributes: `samples`, the number of training
    samples; `steps_per_epoch`; `decoder`, what decodes the samples if there is a choice.
    """

    samples: int
    steps_per_epoch: int
    decoder: str = ""

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Any]]:
        """This rank's share of each global batch of an epoch, on the device.

        `epoch` and `start`, the first step, are counted from 0. Yields one list for each step, of
        `train.accumulate` micro-batches of equal size.
        """

    def close(self) -> None:  # noqa: B027
        """End processes and threads that load data. No training or test data is needed any more."""


class Task(ABC):
    """Base class of all tasks.

    The engine makes a task on every rank, with the same settings, and calls its methods in this
    order: `prepare_data`, `build_networks`, `first_weights`, `phases`; then `losses` for each phase
    and micro-batch, and `forward_pass`, `evaluation_batches`, `evaluate`, `pictures` and
    `summarize` for each evaluation; `concerns` after reports and evaluations.
    """

    name: ClassVar[str] = ""
    """The name in messages. By default, the name of the class itself, not that of a base class."""
    best: ClassVar[Best | None] = None
    """How checkpoints are compared. If it is None, `checkpoint.keep_best` has no effect."""

    data_name: str = ""
    """The name of the data in reports, such as `CIFAR-10`. Set by `prepare_data`."""
    synthetic: bool = False
    """Whether the data is synthetic. Set by `prepare_data`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, train: Train, world: World, device: torch.device) -> None:
        """Raises KeyProblem if keys of `train` do not fit together."""
        train.check_keys()
        self.train = train
        self.world = world
        self.device = device

    trained: Networks
    """The networks that are trained, on the device. Set by the engine before the training. An
    evaluation may be given their average instead."""

    @property
    def title(self) -> str:
        """What is trained, for the log, such as the name of a network."""
        return self.name

    @abstractmethod
    def prepare_data(self) -> TrainingData:
        """Find, download or generate the data, and return the training data.

        Called once on every rank, after the process group exists. A task that downloads data does
        so on rank 0, while the other ranks wait (`hpc_amp.data.together`). Raises DataError.
        """

    @abstractmethod
    def build_networks(self) -> dict[str, nn.Module]:
        """Build the networks on the CPU, by name. Called after `prepare_data`.

        Initial weights come from torch's global generator, which the engine has seeded equally on
        every rank.
        """

    def first_weights(self) -> dict[str, str]:
        """By the name of a network, a file with the weights that it begins with. Only read if the
        run has no checkpoint."""
        return {}

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The updates of one step, in order. Each epoch needs at least one."""

    @abstractmethod
    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        """Yield the losses of one micro-batch for `phase`: once for each entry of the phase's
        `losses`, in any order.

        The engine runs this generator under autocast, and runs the backward pass of the yielded
        losses before it continues. So a network may have several forward passes, each with a
        backward pass, under DDP. Call a network under `torch.no_grad()` if it only generates
        samples for the loss of another one. Do not change parameters here: a checkpoint may be
        copying them.
        """

    def forward_pass(self, batch: Any, networks: Networks) -> bool:
        """Pass a micro-batch of the training data through the networks as an evaluation does, and
        return True. The statistics of batch norms of the average are estimated from such passes.
        Called without gradients and under autocast. By default, there is no such pass, and the
        running statistics are averaged like the weights."""
        return False

    @abstractmethod
    def evaluation_batches(self) -> Iterator[Any]:
        """This rank's share of the test data, on the device. The shares of two ranks may differ in
        length."""

    @abstractmethod
    def evaluate(self, batch: Any, networks: Networks) -> dict[str, Tensor]:
        """Sums over one evaluation batch, by name: float64 or int64 scalars, always with the same
        names. The engine adds them up over batches and ranks. Called without gradients and under
        autocast."""

    def pictures(self, networks: Networks) -> Tensor | None:
        """Images [N, C, H, W] with values from 0 to 1 that show what the networks generate, or
        None. Called after an evaluation, on rank 0 only, without gradients and under autocast."""
        return None

    def animation(self, networks: Networks) -> Tensor | None:
        """The frames [T, 3, H, W] with values from 0 to 1 of a moving picture that shows what the
        networks generate, or None. Called as `pictures`."""
        return None

    def input_pictures(self, batch: Any) -> Tensor | None:
        """Images [N, C, H, W] with values from 0 to 1 that show some inputs of a micro-batch of the
        training data, after augmentation, or None. Called once in a run, on rank 0 only, before the
        first step."""
        return None

    @abstractmethod
    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """Compute metrics, such as `accuracy` and `loss`, from the sums of an evaluation. Called on
        every rank."""

    def concerns(self, step: int, losses: Mapping[str, float]) -> Mapping[str, str]:
        """Signs that the training goes wrong. The keys are names of causes, and the values are
        lines for the log that say what to try. Each cause is logged once in a run.

        Called on every rank: after each report with the means of the losses since the last report,
        and after each evaluation with empty `losses`. By default, there are no such signs.
        """
        return {}

    def protocol(self) -> dict[str, Any]:
        """How the metrics of the last evaluation were measured, where their names do not say it,
        such as the weights of the network of an FID. Written to `protocol.json` of the run, if it
        is not empty. Called on rank 0."""
        return {}


class ModelError(InputError):
    """A network does not exist, or lacks a setting."""
