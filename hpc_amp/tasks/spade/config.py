"""The keys of `train` that SPADE adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Literal

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, NonNegative, Section, section
from hpc_amp.gan.config import Halvings, SpectralName
from hpc_amp.gan.paired_config import (
    PairedLosses,
    PairedTrain,
    PatchJudges,
    perceptual_halvings,
)


@section(kw_only=True, slots=True, frozen=True)
class SpadeLosses(PairedLosses):
    """Weights of the generator's losses. A loss of weight 0 is not computed."""

    kl: NonNegative = 0.05
    """Kullback-Leibler divergence of the encoded styles from a normal distribution. Only with
    `style_encoder`."""


@section(kw_only=True, slots=True, frozen=True)
class SpadeNetworks(Section):
    """The networks, and the weights of the losses."""

    width: Annotated[Count, NETWORK] = 64
    """Channels of the generator's last block; each block before has twice as many."""
    stages: Annotated[Count, NETWORK] = 5
    """How often the generator doubles the size of the image. Its sides must divide by
    2^`stages`."""
    hidden: Annotated[Count, NETWORK] = 128
    """Channels between the label map and the scale and shift of a normalisation."""
    norm: Annotated[Literal["batch", "instance"], NETWORK] = "batch"
    """Normalisation whose scale and shift come from the label map. `instance` makes the result
    independent of how a batch is divided among ranks; for `batch`, `train.sync_batchnorm` does so
    on GPUs."""
    spectral: Annotated[SpectralName, NETWORK] = "fp32"
    """Spectral normalisation of both networks, and the precision of its power iteration."""
    style_encoder: Annotated[bool, NETWORK] = False
    """Encode the style of an image as a vector, and draw vectors to make images of several
    styles."""
    style: Annotated[Count, NETWORK] = 256
    """Length of the style vector."""
    encoder_width: Annotated[Count, NETWORK] = 64
    """Channels of the style encoder's first layer."""
    discriminator: PatchJudges = field(default_factory=PatchJudges)
    """The discriminator, which judges patches."""
    losses: SpadeLosses = field(default_factory=SpadeLosses)
    """Weights of the generator's losses."""


@section(kw_only=True, slots=True, frozen=True)
class SpadeConfig(PairedTrain):
    """Images from label maps."""

    task: TaskName = "spade"
    spade: SpadeNetworks = field(default_factory=SpadeNetworks)
    """The networks, and the weights of the losses."""

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        yield Halvings("spade.stages", self.spade.stages, whole=True)
        yield self.spade.discriminator.halvings("spade.discriminator")
        yield from perceptual_halvings("spade.losses", self.spade.losses)

    def generation_options(self) -> Mapping[str, bool] | None:
        """Maps of instances, and with an encoder of styles an image of a style."""
        styles = {"style": False} if self.spade.style_encoder else {}
        return {**(PairedTrain.generation_options(self) or {}), **styles}
