"""What the ranks of the chaos suite train."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from support.gan import Shares
from support.training import FEATURES, Regression
from torch import Tensor, nn

from hpc_amp.data.order import generator
from hpc_amp.tasks.base import Losses, Networks, TrainingData


class Even(Regression):
    """A regression whose batches and test data are divided among the ranks. It draws from every
    generator in each step, so that a resume has to restore all of them."""

    name: ClassVar[str] = "even"
    test_batches = 6

    def prepare_data(self) -> TrainingData:
        return Shares(self.train, self.world.rank, self.world.size)

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        for losses in super().losses(phase, batch, networks):
            factor = 1 + 0.1 * random.random() + 0.01 * random.gauss(0, 1)
            yield {name: loss * factor for name, loss in losses.items()}

    def evaluation_batches(self) -> Iterator[Tensor]:
        for number in range(self.world.rank, self.test_batches, self.world.size):
            yield test_batch(number)

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        error = sums["squares"] / (7 * self.test_batches)
        return {"error": error, "accuracy": 1 / (1 + error)}


class Uneven(Even):
    """Rank 1 evaluates far more than the others, and one has nothing to evaluate."""

    name: ClassVar[str] = "uneven"
    test_batches = 60

    def evaluation_batches(self) -> Iterator[Tensor]:
        mine = {0: range(5), 1: range(5, self.test_batches)}
        alone = self.world.size == 1
        for number in range(self.test_batches) if alone else mine.get(self.world.rank, ()):
            yield test_batch(number)


class Diverging(Even):
    """The gradients of the last rank are not numbers from step 6 on; its loss is in fp32."""

    name: ClassVar[str] = "diverging"
    steps = 0

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        self.steps += 1
        # Two ranks rehearse their first step.
        begun = self.steps - (self.world.size > 1) >= 6
        for losses in super().losses(phase, batch, networks):
            last = self.world.rank == self.world.size - 1
            yield {n: loss * torch.nan if begun and last else loss for n, loss in losses.items()}


def test_batch(number: int) -> Tensor:
    """A part of the test data."""
    return torch.randn(7, FEATURES, generator=generator("test", number))


class Large(Even):
    """With enough parameters to fill a small disk: 1.4 MB of them."""

    name: ClassVar[str] = "large"

    def build_networks(self) -> dict[str, nn.Module]:
        return {
            "model": nn.Sequential(nn.Linear(FEATURES, 45_000), nn.Tanh(), nn.Linear(45_000, 1))
        }
