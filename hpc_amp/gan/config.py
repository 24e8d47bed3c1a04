"""The keys that the tasks of conditional GANs share. Standard library only."""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import (
    Count,
    Natural,
    NonNegative,
    Path,
    Section,
    Word,
    at_least,
    averaging,
    section,
)
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.data.config import GanData

SpectralName = Literal["none", "fp32", "fp16"]
INCEPTION = "inception"
CALLABLE = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""`package.module:callable`."""
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


@section(kw_only=True, slots=True, frozen=True)
class Adversarial(Section):
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


@section(kw_only=True, slots=True, frozen=True)
class LeastSquaresAdversarial(Adversarial):
    """How generator and discriminator are trained against each other, both with Adam."""

    loss: Literal["hinge", "lsgan", "nonsaturating"] = "lsgan"
    """The loss of both sides."""
    generator_lr: NonNegative = 2e-4
    """Peak learning rate of the generator."""
    discriminator_lr: NonNegative = 2e-4
    """Peak learning rate of the discriminator."""
    betas: Annotated[tuple[float, float], averaging] = (0.5, 0.999)
    """Adam's averaging coefficients."""


def feature_network(value: str) -> None:
    """A check that a value is `inception` or `package.module:callable`."""
    if value != INCEPTION and not CALLABLE.fullmatch(value):
        raise ValueError(f"{value!r} is neither {INCEPTION} nor package.module:callable")


@section(kw_only=True, slots=True, frozen=True)
class FeatureDistance(Section):
    """FID and KID: distances of the generated images from real ones in the features of a trained
    network. Measured if `weights` or `network` is set. Needs the extra `metrics`."""

    SHORTHAND: ClassVar[str] = "weights"

    weights: Path | None = None
    """File with the weights of `network`. For `inception`, the one that FID is defined with:
    `pt_inception-2015-12-05-6726825d.pth`."""
    network: Annotated[Word, feature_network] = INCEPTION
    """`inception`, or `package.module:callable` of your own: called without arguments, it returns a
    module that maps images [B, 3, H, W] from 0 to 1 to features [B, d]. The metrics then have the
    callable's name: `fid_NAME`, `kid_NAME`."""
    antialias: bool = False
    """Scale images to Inception's 299 x 299 pixels with antialiasing. The original FID does not."""
    kid_subsets: Natural = 0
    """Random subsets of the images over which KID is averaged, usually 100. 0: no KID."""
    kid_subset_size: Annotated[int, at_least(2)] = 1000
    """Images of each subset. A smaller set of images is taken whole."""

    @property
    def wanted(self) -> bool:
        """Whether it is measured."""
        return self.weights is not None or self.network != INCEPTION

    def examine(self, train: Train) -> str | None:
        """What `validate` and `doctor` show. Raises ValueError if there is no such file."""
        return _examine(self.weights, self.network) if self.wanted else None


@section(kw_only=True, slots=True, frozen=True)
class PerceptualDistance(Section):
    """LPIPS (Zhang et al., 2018), a distance of two images as people see it. Measured if `weights`
    is set. Needs the extra `metrics`."""

    SHORTHAND: ClassVar[str] = "weights"

    weights: Path | None = None
    """File with torchvision's weights of `network`."""
    network: Literal["alex", "vgg", "squeeze"] = "alex"
    """torchvision's `alexnet`, `vgg16` or `squeezenet1_1`."""

    def examine(self, train: Train) -> str | None:
        """What `validate` and `doctor` show. Raises ValueError if there is no such file."""
        return _examine(self.weights, self.network) if self.weights is not None else None


def _examine(weights: str | None, network: str) -> str:
    file = None if weights is None else os.path.abspath(os.path.expanduser(weights))
    if file is not None and not os.path.isfile(file):
        raise ValueError(f"there is no file {file}")
    found = network if file is None else f"{network} with the weights in {file}"
    if importlib.util.find_spec("torchmetrics") is None:
        found += "; this Python has no torchmetrics, that of the job needs it"
    return found


@section(kw_only=True, slots=True, frozen=True)
class SetEvaluation(Section):
    """What an evaluation measures."""

    fid: FeatureDistance = field(default_factory=FeatureDistance)
    """FID and KID: distances of the generated images from real ones in the features of a trained
    network. Measured if `weights` or `network` is set. Needs the extra `metrics`."""


@section(kw_only=True, slots=True, frozen=True)
class Evaluation(SetEvaluation):
    """What an evaluation measures and shows."""

    pictures: Natural = 6
    """Rows of the picture that is written after each evaluation, at most the samples of rank 0's
    first evaluation batch. 0: none."""


@section(kw_only=True, slots=True, frozen=True)
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
        Train.check_keys(self)
        if self.compile and self.adversarial.r1:
            raise KeyProblem(
                "compile",
                "adversarial.r1 is the gradient of a gradient, which torch does not compile",
                "set train.adversarial.r1 to 0, or train.compile to false",
            )
        images: GanData = self.images  # type: ignore[attr-defined]
        images.check_keys(self)
        for each in self.halvings():
            each.check(images.size)

    def generation_options(self) -> Mapping[str, bool] | None:
        """A model may use all options."""
        return {"style": False, "instances": False, "direction": False, "fps": False}
