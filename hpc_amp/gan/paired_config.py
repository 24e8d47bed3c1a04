"""The keys that models of pairs share. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated

from hpc_amp.config.values import NETWORK, Count, NonNegative, Path, Section, section
from hpc_amp.gan.config import VGG_HALVINGS, Evaluation, GanTrain, Halvings, PerceptualDistance
from hpc_amp.gan.data.config import PairedData


@section(kw_only=True, slots=True, frozen=True)
class PairedLosses(Section):
    """Weights of the generator's losses. A loss of weight 0 is not computed."""

    gan: NonNegative = 1.0
    """Deceive the discriminator."""
    features: NonNegative = 10.0
    """Feature matching: the L1 distance of the discriminator's feature maps."""
    perceptual: NonNegative = 10.0
    """The L1 distance of feature maps of a fixed network."""
    perceptual_weights: Path | None = None
    """File with the weights of torchvision's `vgg19` for the perceptual loss. Default: a small
    network with fixed random weights, which says less about what people see."""


@section(kw_only=True, slots=True, frozen=True)
class PatchJudges(Section):
    """The discriminator: one for patches of the image, one for patches of half the image, and so
    on."""

    scales: Annotated[Count, NETWORK] = 2
    """Discriminators, each sees the image at half the size of the one before."""
    width: Annotated[Count, NETWORK] = 64
    """Channels after the first layer; each further layer has twice as many, at most 512."""
    layers: Annotated[Count, NETWORK] = 3
    """Convolutions of stride 2; one of stride 1 follows. More of them judge larger patches."""

    def halvings(self, key: str, *, scales: int | None = None) -> Halvings:
        """Those of the discriminator of the smallest images, `scales` of them or as many as there
        are. `key` is the place of this section below `train`."""
        # The layer of stride 1 has one pixel less, and normalisation makes a single one 0.
        times = (scales or self.scales) - 1 + self.layers
        return Halvings(f"{key}.layers", times, least=3, fewer="fewer layers or scales")


@section(kw_only=True, slots=True, frozen=True)
class PairedEvaluation(Evaluation):
    """What an evaluation measures and shows."""

    lpips: PerceptualDistance = field(default_factory=PerceptualDistance)
    """LPIPS, the distance of each image from the true one as people see it. Measured if `weights`
    is set. Needs the extra `metrics`."""


@section(kw_only=True, slots=True, frozen=True)
class PairedTrain(GanTrain):
    """What the configurations of models of pairs have."""

    images: PairedData = field(default_factory=PairedData)
    """Where pairs come from."""
    evaluation: PairedEvaluation = field(default_factory=PairedEvaluation)

    def generation_options(self) -> Mapping[str, bool] | None:
        """The maps of instances that the model was trained with."""
        return {"instances": True} if self.images.instances else {}


def perceptual_halvings(key: str, losses: PairedLosses, before: int = 0) -> Iterator[Halvings]:
    """Those of the network of the perceptual loss, after `before` others. `key` is the place of
    `losses` below `train`."""
    if losses.perceptual and losses.perceptual_weights is not None:
        yield Halvings(f"{key}.perceptual_weights", before + VGG_HALVINGS)
