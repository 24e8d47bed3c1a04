"""A task with two networks, two optimizers and three losses."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.config.schema import Optimizer
from hpc_amp.tasks.base import Losses, Networks, Phase, TrainingData
from support.training import FEATURES, Regression, Vectors


class TinyGan(Regression):
    """A GAN on vectors: the critic has a loss for real and one for generated inputs."""

    name: ClassVar[str] = "tiny GAN"
    overflow: ClassVar[dict[str, set[int]]] = {}
    """Micro-batches in which a loss's gradients are made infinite, by the loss's name."""

    def prepare_data(self) -> TrainingData:
        return Shares(self.train, self.world.rank, self.world.size)

    def build_networks(self) -> dict[str, nn.Module]:
        self.calls: Counter[str] = Counter()
        return {"generator": nn.Linear(FEATURES, FEATURES), "critic": nn.Linear(FEATURES, 1)}

    def phases(self) -> tuple[Phase, ...]:
        adam = Optimizer(name="adamw", lr=0.02, weight_decay=0.0)
        return (
            Phase("critic", ("critic",), ("real", "fake"), Optimizer(lr=0.05, weight_decay=0.0)),
            Phase("generator", ("generator",), ("fooled",), adam),
        )

    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        noise = batch.flip(1)
        if phase == "critic":
            with torch.no_grad():
                made = networks["generator"](noise)
            yield self.loss("real", networks["critic"](batch + 2))
            yield self.loss("fake", -networks["critic"](made))
        else:
            yield self.loss("fooled", networks["critic"](networks["generator"](noise)))

    def loss(self, name: str, logits: Tensor) -> Losses:
        loss = F.softplus(-logits.float()).mean()
        if self.calls[name] in self.overflow.get(name, ()):
            loss = loss * torch.inf
        self.calls[name] += 1
        return {name: loss}

    def evaluate(self, batch: Any, networks: Networks) -> dict[str, Tensor]:
        made = networks["generator"](batch)
        return {"squares": (made.mean(1) - 2).square().sum(dtype=torch.float64)}


class Shares(Vectors):
    """One rank's share of the vectors."""

    def __init__(self, train: Any, rank: int, size: int) -> None:
        super().__init__(train)
        self.rank, self.size = rank, size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Tensor]]:
        for parts in super().epoch(epoch, start):
            share = torch.cat(parts).chunk(self.size)[self.rank]
            yield list(share.chunk(self.train.accumulate))


class OnePass(TinyGan):
    """Each phase has several losses of one forward pass, and the critic a third from the second
    epoch on, in a phase of its own."""

    separate: ClassVar[bool] = False

    def phases(self) -> tuple[Phase, ...]:
        critic, generator = super().phases()
        return (
            replace(critic, losses=(("real", "fake"),), separate_scalers=self.separate),
            replace(
                generator,
                losses=(("fooled", "near"),),
                weights={"near": 0.5},
                separate_scalers=self.separate,
            ),
            replace(critic, name="late", losses=("flat",), begins=1),
        )

    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        noise, critic = batch.flip(1), networks["critic"]
        if phase == "late":
            yield {"flat": critic(batch).square().mean()}
            return
        with contextlib.nullcontext() if phase == "generator" else torch.no_grad():
            made = networks["generator"](noise)
        if phase == "generator":
            yield {**self.loss("fooled", critic(made)), "near": (made - batch).square().mean()}
        else:
            real, fake = self.judge(critic, batch + 2, made)
            yield {**self.loss("real", real), **self.loss("fake", -fake)}

    def judge(self, critic: nn.Module, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        return critic(real), critic(made)


class Separate(OnePass):
    """The same with a loss scaler for each loss; two of them do not reach all weights."""

    separate = True

    def build_networks(self) -> dict[str, nn.Module]:
        return {**super().build_networks(), "critic": Heads()}

    def judge(self, critic: nn.Module, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        judged: tuple[Tensor, Tensor] = critic(real, made)
        return judged


class Heads(nn.Module):
    """A critic with a part for real inputs, one for generated ones, and one for both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, FEATURES)
        self.real, self.fake = nn.Linear(FEATURES, 1), nn.Linear(FEATURES, 1)

    def forward(self, inputs: Tensor, made: Tensor | None = None) -> Any:
        if made is None:
            hidden = self.trunk(inputs)
            return self.real(hidden) + self.fake(hidden)
        return self.real(self.trunk(inputs)), self.fake(self.trunk(made))


class Idle(TinyGan):
    """Each phase updates a network that its losses do not use: `idle`, and in the first epoch
    `helper`."""

    def build_networks(self) -> dict[str, nn.Module]:
        others = {name: nn.Linear(FEATURES, FEATURES) for name in ("helper", "idle")}
        return {**super().build_networks(), **others}

    def phases(self) -> tuple[Phase, ...]:
        critic, generator = super().phases()
        both = ("generator", "helper")
        return (
            replace(critic, networks=("critic", "idle")),
            replace(generator, networks=both, ends=1),
            replace(generator, name="helped", networks=both, losses=("helped",), begins=1),
        )

    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        if phase == "helped":
            made = networks["generator"](networks["helper"](batch))
            yield self.loss("helped", networks["critic"](made))
        else:
            yield from super().losses(phase, batch, networks)


class Halves(TinyGan):
    """The losses of the critic's phase have no network in common: `fake` is judged by a helper."""

    def build_networks(self) -> dict[str, nn.Module]:
        return {**super().build_networks(), "helper": nn.Linear(FEATURES, 1)}

    def phases(self) -> tuple[Phase, ...]:
        critic, generator = super().phases()
        return replace(critic, networks=("critic", "helper")), generator

    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        if phase == "critic":
            yield self.loss("real", networks["critic"](batch + 2))
            yield self.loss("fake", -networks["helper"](batch.flip(1)))
        else:
            yield from super().losses(phase, batch, networks)
