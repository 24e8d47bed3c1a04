"""The keys that DCGAN adds to `train`. Needs only the standard library."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import TaskName, Train
from hpc_amp.config.values import (
    NETWORK,
    Count,
    NonNegative,
    Section,
    WeightsFile,
    at_least,
    averaging,
    image_side,
    section,
)
from hpc_amp.gan.config import SetEvaluation


@section(kw_only=True, slots=True, frozen=True)
class Gan(Section):
    """The two networks, and how Adam updates them."""

    image_size: Annotated[int, image_side, NETWORK] = 64
    """Side of the images in pixels: 16, 32, 64, ... Images of another size are scaled to it. Of
    `data.augment`, only `flip` has an effect."""
    latent: Annotated[Count, NETWORK] = 100
    """Length of the latent vectors, from which the generator generates images."""
    generator_width: Annotated[Count, NETWORK] = 64
    """Channels of the generator before its last layer. Each earlier layer has twice as many."""
    discriminator_width: Annotated[Count, NETWORK] = 64
    """Channels of the discriminator after its first layer. Each further layer has twice as many."""
    norm: Annotated[Literal["batch", "group"], NETWORK] = "batch"
    """Normalisation of both networks. `group` makes the result independent of how a batch is
    divided among ranks."""
    lr: NonNegative = 2e-4
    """Peak learning rate."""
    betas: Annotated[tuple[float, float], averaging] = (0.5, 0.999)
    """Adam's averaging coefficients."""
    eps: NonNegative = 1e-8
    """Adam's term for numerical stability. Precision `O3` needs a larger one, such as 1e-4."""
    pictures: Count = 64
    """Number of generated images in the picture that is written after each evaluation."""
    evaluation_images: Annotated[int, at_least(2)] = 10_000
    """Number of generated images that an evaluation compares with the test images."""
    generator_weights: WeightsFile | None = None
    """File with the initial weights of the generator: `networks.pt` or `average.pt` of a
    checkpoint, or a state dict. Default: random weights."""
    discriminator_weights: WeightsFile | None = None
    """The same for the discriminator."""


@section(kw_only=True, slots=True, frozen=True)
class DcganConfig(Train):
    """A generator of images and its discriminator."""

    UNUSED: ClassVar[tuple[str, ...]] = ("optimizer",)

    task: TaskName = "dcgan"
    gan: Gan = field(default_factory=Gan)
    """The networks, and how Adam updates them."""
    evaluation: SetEvaluation = field(default_factory=SetEvaluation)
    """What an evaluation measures."""
