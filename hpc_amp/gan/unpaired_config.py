"""The keys that the translations between two domains, UNIT and MUNIT, share. Standard library
only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated

from hpc_amp.config.values import (
    NETWORK,
    Count,
    Natural,
    NonNegative,
    Path,
    Positive,
    Section,
    section,
)
from hpc_amp.gan.config import (
    VGG_HALVINGS,
    GanTrain,
    Halvings,
    LeastSquaresAdversarial,
    SpectralName,
)
from hpc_amp.gan.data.config import UnpairedData


@section(kw_only=True, slots=True, frozen=True)
class UnpairedAdversarial(LeastSquaresAdversarial):
    """How generator and discriminator are trained against each other, both with Adam."""

    generator_lr: NonNegative = 1e-4
    """Peak learning rate of the generator."""
    discriminator_lr: NonNegative = 1e-4
    """Peak learning rate of the discriminator."""


@section(kw_only=True, slots=True, frozen=True)
class Translation(Section):
    """The networks of a translation between two domains, and the weights of its losses. Each loss
    is a sum over both domains."""

    width: Annotated[Count, NETWORK] = 64
    """Channels of the autoencoders at full resolution; each halving doubles them."""
    downs: Annotated[Natural, NETWORK] = 2
    """How often the autoencoders halve the resolution."""
    blocks: Annotated[Count, NETWORK] = 4
    """Residual blocks of each encoder, and as many of each decoder."""
    discriminator_width: Annotated[Count, NETWORK] = 64
    """Channels of a discriminator after its first layer; each further layer doubles them, up to
    512."""
    discriminator_layers: Annotated[Count, NETWORK] = 4
    """Layers of stride 2 of a discriminator."""
    discriminator_scales: Annotated[Count, NETWORK] = 3
    """Discriminators of a domain: of the image, of half its size, of a quarter, and so on."""
    spectral: Annotated[SpectralName, NETWORK] = "none"
    """Spectral normalisation of the discriminators, and the precision in which it is computed."""
    gan: Positive = 1.0
    """Weight of deceiving the discriminators."""
    image_recon: NonNegative = 10.0
    """Weight of the L1 distance of an image to what its own autoencoder makes of it."""
    perceptual: NonNegative = 0.0
    """Weight of the distance of an image to its translation in the features of a fixed network,
    normalised in each channel so that colours count little."""
    perceptual_weights: Path | None = None
    """File with the weights of torchvision's `vgg19` for `perceptual`. Default: a small network
    with fixed random weights."""

    def halvings(self, key: str) -> Iterator[Halvings]:
        """Those of all networks. `key` is the place of this section below `train`."""
        # The residual blocks mirror the border, for which one pixel is not enough.
        yield Halvings(f"{key}.downs", self.downs, least=2, whole=True)
        yield Halvings(
            f"{key}.discriminator_layers",
            self.discriminator_scales - 1 + self.discriminator_layers,
            fewer="fewer discriminator_layers or discriminator_scales",
        )
        if self.perceptual and self.perceptual_weights is not None:
            yield Halvings(f"{key}.perceptual_weights", VGG_HALVINGS)


@section(kw_only=True, slots=True, frozen=True)
class UnpairedTrain(GanTrain):
    """What the configurations of models of two domains have."""

    images: UnpairedData = field(default_factory=UnpairedData)
    """The images of both domains."""

    def generation_options(self) -> Mapping[str, bool] | None:
        """The direction of the translation."""
        return {"direction": True}

    adversarial: UnpairedAdversarial = field(default_factory=UnpairedAdversarial)
