"""The keys that the tasks of conditional GANs share. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import Count, Natural, NonNegative, averaging
from hpc_amp.errors import KeyProblem

SpectralName = Literal["none", "fp32", "fp16"]
VGG_HALVINGS = 4
"""How often the layers of VGG-19 halve an image that the perceptual loss uses."""


@dataclass(frozen=True, slots=True)
class Halvings:
    """A part of a model halves images, and needs some pixels at the end."""

    key: str
    """Where that is set, below `train`."""
    times: int
    """How often images are halved."""
    least: int = 1
    """The pixels that both sides need after that."""
    whole: bool = False
    """Whether each half has to be whole, because the way back doubles it."""
    fewer: str = "fewer"
    """What to use fewer of."""

    def check(self, size: tuple[int, int]) -> None:
        """Raise KeyProblem where images of `size` cannot be halved so often."""
        possible = self._possible(size)
        if self.times <= possible:
            return
        raise KeyProblem(
            self.key,
            f"images of {size[0]} x {size[1]} pixels (train.images.image_size) can be halved "
            f"{possible} times here, not {self.times} times",
            f"use {self.fewer}, or images of another size",
        )

    def _possible(self, size: tuple[int, int]) -> int:
        times, (height, width) = 0, size
        while min(height // 2, width // 2) >= self.least:
            if self.whole and (height % 2 or width % 2):
                break
            height, width, times = height // 2, width // 2, times + 1
        return times


@dataclass(kw_only=True, slots=True, frozen=True)
class Adversarial:
    """How generator and discriminator are trained against each other, both with Adam."""

    loss: Literal["hinge", "lsgan", "nonsaturating"] = "hinge"
    """The loss of both sides."""
    generator_lr: NonNegative = 1e-4
    """Peak learning rate of the generator."""
    discriminator_lr: NonNegative = 4e-4
    """Peak learning rate of the discriminator."""
    betas: Annotated[tuple[float, float], averaging] = (0.0, 0.999)
    """Adam's averaging coefficients."""
    eps: NonNegative = 1e-8
    """Adam's term for numerical stability. Precision `O3` needs a larger one, such as 1e-4."""
    discriminator_steps: Count = 1
    """Updates of the discriminator for one of the generator: of so many steps, the generator is
    updated in the last."""
    r1: NonNegative = 0.0
    """Weight of the R1 penalty of the discriminator, such as 10. 0: none."""
    separate_scalers: bool = False
    """Under `fp16`, give each loss of the generator a backward pass and a loss scale of its own.
    One overflowing loss then does not shrink the scale of the others; each loss costs a backward
    pass."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Evaluation:
    """What an evaluation measures and shows."""

    pictures: Natural = 6
    """Rows of the picture that is written after each evaluation. 0: none."""


@dataclass(kw_only=True, slots=True, frozen=True)
class GanTrain(Train):
    """What the configurations of all conditional GANs have."""

    UNUSED: ClassVar[tuple[str, ...]] = ("data", "optimizer")

    adversarial: Adversarial = field(default_factory=Adversarial)
    """How generator and discriminator are trained against each other, both with Adam."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """What an evaluation measures and shows."""

    def halvings(self) -> Iterator[Halvings]:
        """How often each part of the model halves images of `images.image_size`."""
        yield from ()

    def check_keys(self) -> None:
        """Check that images have the size that the networks need. Raises KeyProblem."""
        for each in self.halvings():
            each.check(self.images.size)  # type: ignore[attr-defined]

    def generation_options(self) -> Mapping[str, bool] | None:
        """A model may use all options."""
        return {"style": False, "instances": False, "direction": False}
