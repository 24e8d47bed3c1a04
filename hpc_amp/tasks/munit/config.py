"""The keys of `train` that MUNIT adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, Natural, NonNegative, at_least, section
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import Evaluation, Halvings, PerceptualDistance
from hpc_amp.gan.unpaired_config import Translation, UnpairedTrain


@section(kw_only=True, slots=True, frozen=True)
class MunitNetworks(Translation):
    """The networks, and the weights of the losses. Each loss is a sum over both domains."""

    style: Annotated[Count, NETWORK] = 8
    """Length of a style code."""
    style_downs: Annotated[Natural, NETWORK] = 4
    """How often a style encoder halves the resolution before it averages over all pixels."""
    hidden: Annotated[Count, NETWORK] = 256
    """Width of the network that makes the decoder's normalisation from a style code."""
    style_recon: NonNegative = 1.0
    """Weight of the L1 distance of a random style code to what is found in the image made with
    it."""
    content_recon: NonNegative = 1.0
    """Weight of the L1 distance of the content code of an image to that of its translation."""
    cycle: NonNegative = 0.0
    """Weight of the L1 distance of an image to its translation there and back, in its own
    style. 0 saves the computation."""

    def halvings(self, key: str) -> Iterator[Halvings]:
        """Those of all networks."""
        yield from Translation.halvings(self, key)
        yield Halvings(f"{key}.style_downs", self.style_downs)


@section(kw_only=True, slots=True, frozen=True)
class MunitEvaluation(Evaluation):
    """What an evaluation measures and shows."""

    styles: Annotated[int, at_least(2)] = 4
    """Random styles in which each image is translated."""
    lpips: PerceptualDistance = field(default_factory=PerceptualDistance)
    """LPIPS, the distance of translations of one image from each other as people see it. Measured
    if `weights` is set. Needs the extra `metrics`."""


@section(kw_only=True, slots=True, frozen=True)
class MunitConfig(UnpairedTrain):
    """MUNIT: translation between two domains in many styles."""

    task: TaskName = "munit"
    munit: MunitNetworks = field(default_factory=MunitNetworks)
    """The networks, and the weights of the losses."""
    evaluation: MunitEvaluation = field(default_factory=MunitEvaluation)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        return self.munit.halvings("munit")

    def check_keys(self) -> None:
        """Also that a loss trains the style encoders."""
        UnpairedTrain.check_keys(self)
        if not (self.munit.image_recon or self.munit.style_recon or self.munit.cycle):
            raise KeyProblem(
                "munit.image_recon",
                "image_recon, style_recon and cycle are all 0: nothing trains the style encoders",
            )

    def generation_options(self) -> Mapping[str, bool] | None:
        """The direction, and an image of a style."""
        return {"direction": True, "style": False}
