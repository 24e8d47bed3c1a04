"""The keys of `train` that pix2pixHD adds. Standard library only."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Literal

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, Fixed, Natural, Section, section
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import Halvings, LeastSquaresAdversarial, SpectralName
from hpc_amp.gan.paired_config import (
    PairedLosses,
    PairedTrain,
    PatchJudges,
    perceptual_halvings,
)

_PHASES = Fixed("the checkpoints hold the state of the optimizers of these phases")


@section(kw_only=True, slots=True, frozen=True)
class Enhancer(Section):
    """The local enhancer, which doubles the size of the images, and when it is trained."""

    blocks: Annotated[Count, NETWORK] = 3
    """Residual blocks."""
    coarse_epochs: Annotated[Natural, _PHASES] = 100
    """First epochs, in which the global generator learns images of half the size."""
    fine_epochs: Annotated[Natural, _PHASES] = 10
    """Epochs after those, in which the enhancer alone is trained. Then both are trained
    together."""


@section(kw_only=True, slots=True, frozen=True)
class InstanceFeatures(Section):
    """The encoder of instance features: how an object looks, as a few numbers."""

    channels: Annotated[Count, NETWORK] = 3
    """Numbers of an instance."""
    width: Annotated[Count, NETWORK] = 16
    """Channels of the encoder's first layer."""
    downsamplings: Annotated[Count, NETWORK] = 4
    """Convolutions of stride 2."""
    clusters: Annotated[Count, NETWORK] = 10
    """Looks of each label, of which new images get one for each object: the most clusters into
    which an evaluation divides the features of a label."""


@section(kw_only=True, slots=True, frozen=True)
class Pix2pixHdNetworks(Section):
    """The networks, and the weights of the losses."""

    width: Annotated[Count, NETWORK] = 64
    """Channels of the global generator's first layer."""
    downsamplings: Annotated[Count, NETWORK] = 4
    """Convolutions of stride 2 in the global generator; each doubles the channels."""
    blocks: Annotated[Count, NETWORK] = 9
    """Residual blocks of the global generator."""
    norm: Annotated[Literal["batch", "instance"], NETWORK] = "instance"
    """Normalisation of the generator. With `batch` the result depends on how a batch is divided
    among ranks."""
    spectral: Annotated[SpectralName, NETWORK] = "none"
    """Spectral normalisation of all networks, and the precision of its power iteration."""
    enhancer: Annotated[Enhancer | None, NETWORK] = None
    """A local enhancer after the global generator, which then makes images of half the size.
    Default: none."""
    instance_features: Annotated[InstanceFeatures | None, NETWORK] = None
    """Encode how each object of an image looks, for outputs of which one can choose the look. Needs
    `images.instances`. Default: none."""
    discriminator: PatchJudges = field(default_factory=PatchJudges)
    """The discriminator, which judges patches."""
    losses: PairedLosses = field(default_factory=PairedLosses)
    """Weights of the generator's losses."""


@section(kw_only=True, slots=True, frozen=True)
class Pix2pixHdConfig(PairedTrain):
    """Images from label maps or other images, from coarse to fine."""

    task: TaskName = "pix2pixhd"
    pix2pixhd: Pix2pixHdNetworks = field(default_factory=Pix2pixHdNetworks)
    """The networks, and the weights of the losses."""
    adversarial: LeastSquaresAdversarial = field(default_factory=LeastSquaresAdversarial)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks. With an enhancer, some see images of half the size."""
        networks = self.pix2pixhd
        judges, before = networks.discriminator, int(networks.enhancer is not None)
        # The residual blocks mirror the border, for which one pixel is not enough.
        yield Halvings(
            "pix2pixhd.downsamplings", before + networks.downsamplings, least=2, whole=True
        )
        # With an enhancer, there is a discriminator of images of half the size, too.
        yield judges.halvings("pix2pixhd.discriminator", scales=max(judges.scales, 1 + before))
        if networks.instance_features is not None:
            times = networks.instance_features.downsamplings
            key = "pix2pixhd.instance_features.downsamplings"
            yield Halvings(key, times, least=2, whole=True)
        yield from perceptual_halvings("pix2pixhd.losses", networks.losses, before)

    def check_keys(self) -> None:
        """Also that there is what instance features need."""
        PairedTrain.check_keys(self)
        if self.pix2pixhd.instance_features is None:
            return
        key = "pix2pixhd.instance_features"
        if self.images.inputs != "labels" or not self.images.instances:
            raise KeyProblem(
                key,
                "it needs label maps with instance maps",
                "set train.images.inputs to labels and train.images.instances to true",
            )
        if self.evaluate_every == 0:
            raise KeyProblem(
                key,
                "it needs evaluations, which find the clusters of features",
                "set train.evaluate_every",
            )
