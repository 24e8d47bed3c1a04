"""The task of a conditional GAN: what all models have in common.

A step updates the discriminator, then the generator. A model says what their networks and losses
are, what its images are measured by, and what a picture of it shows.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from hpc_amp.config.schema import Optimizer
from hpc_amp.gan.collapse import CHANCE, CollapseWatch
from hpc_amp.gan.config import Adversarial, GanTrain
from hpc_amp.gan.data.batches import ClassBatch, PairedBatch, UnpairedBatch
from hpc_amp.gan.generation import Request
from hpc_amp.tasks.base import Best, Losses, ModelError, Networks, Phase, Task

DISCRIMINATOR, GENERATOR = "discriminator", "generator"
"""Names of the two phases, and of their networks."""
_SHOWN = 16
"""The number of inputs in a picture."""


class ConditionalGan(Task):
    """Base class of the models. A model has two networks, `discriminator` and `generator`; one with
    more of them extends `phases`.

    The generator's losses are those of `loss_weights` whose weight is not 0: `generator_losses`
    returns a dictionary with these names, all of one forward pass. Their weighted sum goes backward
    at one loss scale, or each at its own where `adversarial.separate_scalers` is on.
    """

    best: ClassVar[Best | None] = Best("frechet_random", "lowest")
    judged_sets: ClassVar[int] = 1
    """Sets of images whose losses `d` is the sum of, such as two domains."""
    train: GanTrain

    @abstractmethod
    def loss_weights(self) -> Mapping[str, float]:
        """The generator's losses by name, and their weights."""

    @abstractmethod
    def discriminator_losses(self, batch: Any, networks: Networks) -> Losses:
        """`d`, the loss of telling real from generated images, and `r1` where
        `adversarial.r1` is not 0. The generator is frozen: call it under `torch.no_grad()`."""

    @abstractmethod
    def generator_losses(self, batch: Any, networks: Networks) -> Losses:
        """The losses of `generator_names`. The discriminator is frozen: gradients go through it,
        and its weights get none."""

    def generation_networks(self) -> dict[str, nn.Module]:
        """The networks that `generate` needs, on the CPU; the data is not prepared."""
        built = self.build_networks()
        return {name: built[name] for name in built if not name.endswith(DISCRIMINATOR)}

    @abstractmethod
    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """Each file of `request` with the image [3, H, W] from -1 to 1 that is made from it. The
        data is not prepared; networks are in evaluation mode; `request` has the options that
        `train.generation_options` says. Raises DataError."""

    def generation_parts(self, request: Request) -> Iterable[Sequence[Path]]:
        """The files of `request` that this rank makes images from, in parts."""
        return request.batches()

    @abstractmethod
    def picture_rows(self, networks: Networks) -> Tensor:
        """Rows of images [rows, columns, 3, H, W] from -1 to 1 of always the same samples, such as
        input, output and truth."""

    def outputs(self, make: Callable[[Networks], Tensor], networks: Networks) -> list[Tensor]:
        """For a picture: what `make` makes with the networks that are trained and, where `networks`
        is their average, with that."""
        if networks is self.trained:
            return [make(networks)]
        for network in self.trained.values():
            network.eval()
        live = make(self.trained)
        for network in self.trained.values():
            network.train()
        return [live, make(networks)]

    def generator_names(self) -> tuple[str, ...]:
        """The generator's losses that count: those whose weight is not 0."""
        return tuple(name for name, weight in self.loss_weights().items() if weight != 0)

    def phases(self) -> tuple[Phase, ...]:
        """The discriminator's update, then the generator's."""
        sides = self.train.adversarial
        if sides.r1 and self.train.precision.mode in ("O2", "O3"):
            raise ModelError(
                "adversarial.r1 is computed in fp32, which needs weights in fp32: use precision "
                "fp16, bf16 or O1, or set r1 to 0"
            )
        judging = ("d", "r1") if sides.r1 else ("d",)
        names = self.generator_names()
        return (
            Phase(
                DISCRIMINATOR,
                (DISCRIMINATOR,),
                (judging,),
                adam(sides, sides.discriminator_lr),
                weights={"r1": sides.r1} if sides.r1 else {},
            ),
            Phase(
                GENERATOR,
                (GENERATOR,),
                (names,),
                adam(sides, sides.generator_lr),
                weights={name: self.loss_weights()[name] for name in names},
                separate_scalers=sides.separate_scalers,
                every=sides.discriminator_steps,
            ),
        )

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        """Those of the phase, of one forward pass."""
        if phase == DISCRIMINATOR:
            yield self.discriminator_losses(batch, networks)
        else:
            yield self.generator_losses(batch, networks)

    def spreads(self) -> Mapping[str, float]:
        """How much the generated images of the last evaluation differ from each other, relative to
        the real ones, for each set of them: see `SetDistances.spreads`. Empty if that is not
        measured."""
        return {}

    def concerns(self, step: int, losses: Mapping[str, float]) -> Mapping[str, str]:
        """Signs of a collapse (`hpc_amp.gan.collapse`). The losses to look at are named `d` and
        `gan`, or end with `_d` and `_gan`."""
        if losses:
            return self._watch.report(step, losses)
        return self._watch.evaluation(step, self.spreads())

    @functools.cached_property
    def _watch(self) -> CollapseWatch:
        names: list[str] = []
        for phase in self.phases():
            for entry in phase.losses:
                names += [entry] if isinstance(entry, str) else entry
        chance = self.judged_sets * CHANCE[self.train.adversarial.loss]
        return CollapseWatch(
            {name: chance for name in names if name.split("_")[-1] == "d"},
            tuple(name for name in names if name.split("_")[-1] == "gan"),
        )

    def pictures(self, networks: Networks) -> Tensor | None:
        """The rows of `picture_rows`, each side by side as one image [rows, 3, H, columns * W] from
        0 to 1."""
        if self.train.evaluation.pictures == 0:
            return None
        rows = self.picture_rows(networks).float().cpu()
        return rows.permute(0, 2, 3, 1, 4).flatten(3).div(2).add(0.5).clamp(0, 1)

    def input_pictures(self, batch: PairedBatch | UnpairedBatch | ClassBatch) -> Tensor | None:
        """The first images of a batch."""
        if self.train.evaluation.pictures == 0:
            return None
        return batch.examples(_SHOWN).float().cpu().div(2).add(0.5).clamp(0, 1)


def adam(sides: Adversarial, lr: float) -> Optimizer:
    """Adam with the coefficients of `sides`."""
    return Optimizer(name="adam", lr=lr, betas=sides.betas, eps=sides.eps, weight_decay=0.0)
