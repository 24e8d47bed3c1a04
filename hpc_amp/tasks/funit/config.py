"""The keys of `train` that FUNIT adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, Natural, NonNegative, Section, section
from hpc_amp.gan.config import Adversarial, GanTrain, Halvings, SpectralName
from hpc_amp.gan.data.config import ClassData


@section(kw_only=True, slots=True, frozen=True)
class FunitAdversarial(Adversarial):
    """How generator and discriminator are trained against each other, both with Adam."""

    discriminator_lr: NonNegative = 1e-4
    """Peak learning rate of the discriminator."""
    r1: NonNegative = 10.0
    """Weight of the R1 penalty of the discriminator. 0: none."""


@section(kw_only=True, slots=True, frozen=True)
class FunitNetworks(Section):
    """The networks, and the weights of the generator's losses."""

    width: Annotated[Count, NETWORK] = 64
    """Channels of the first layer of both encoders and of the last layer of the decoder."""
    content_halvings: Annotated[Count, NETWORK] = 3
    """How often the content encoder halves the image; its channels double each time."""
    style_halvings: Annotated[Count, NETWORK] = 4
    """How often the style encoder halves the image; its channels double each time, up to 16 times
    `width`."""
    residual_blocks: Annotated[Natural, NETWORK] = 2
    """Residual blocks of the content encoder, and as many of the decoder."""
    style_size: Annotated[Count, NETWORK] = 64
    """Length of the style code."""
    mlp_width: Annotated[Count, NETWORK] = 256
    """Width of the fully connected layers between the style code and the decoder."""
    discriminator_width: Annotated[Count, NETWORK] = 64
    """Channels of the first layer of the discriminator."""
    discriminator_halvings: Annotated[Count, NETWORK] = 5
    """How often the discriminator halves the image, each time after two residual blocks; its
    channels double each time, up to 16 times `discriminator_width`."""
    spectral: Annotated[SpectralName, NETWORK] = "none"
    """Spectral normalisation of the discriminator, and the number format of its iteration."""
    gan_weight: NonNegative = 1.0
    """Weight of the adversarial loss, which is the mean of the losses of translated and of
    reconstructed images."""
    features_weight: NonNegative = 1.0
    """Weight of the distance of discriminator features of translated images and of references."""
    reconstruction_weight: NonNegative = 0.1
    """Weight of the L1 distance of an image and its reconstruction from its own style."""

    @property
    def layout_channels(self) -> int:
        """Channels of what the content encoder makes of an image."""
        return int(self.width * 2**self.content_halvings)

    def halvings(self, key: str) -> Iterator[Halvings]:
        """Those of all networks. `key` is the place of this section below `train`."""
        # The last convolutions mirror the border, for which one pixel is not enough.
        yield Halvings(f"{key}.content_halvings", self.content_halvings, least=2, whole=True)
        yield Halvings(f"{key}.style_halvings", self.style_halvings)
        yield Halvings(f"{key}.discriminator_halvings", self.discriminator_halvings)


@section(kw_only=True, slots=True, frozen=True)
class FunitConfig(GanTrain):
    """A generator that draws an image as a class of which it sees a few images, and its
    discriminator."""

    task: TaskName = "funit"
    images: ClassData = field(default_factory=ClassData)
    """The images, in classes."""
    funit: FunitNetworks = field(default_factory=FunitNetworks)
    """The networks, and the weights of the generator's losses."""
    adversarial: FunitAdversarial = field(default_factory=FunitAdversarial)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        return self.funit.halvings("funit")

    def generation_options(self) -> Mapping[str, bool] | None:
        """Images of the class to draw."""
        return {"style": True}
