"""The keys that the tasks of conditional GANs share. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import Count, Natural, NonNegative, averaging

SpectralName = Literal["none", "fp32", "fp16"]


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
