"""The keys that classification adds to `train`. Needs only the standard library."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import NETWORK, Count, Fraction, Section, WeightsFile, Word, section
from hpc_amp.errors import KeyProblem
from hpc_amp.tasks.classification.names import OWN, TORCHVISION


@section(kw_only=True, slots=True, frozen=True)
class Model(Section):
    """The network of a classification."""

    SHORTHAND: ClassVar[str] = "name"

    name: Word = "resnet18"
    """`resnet8`, `resnet20`, `resnet56` (narrow, for small images), `resnet18`, `resnet34`,
    `resnet50`, a network without shortcuts (`fc`, `lenet5`, `conv2`, `conv4`, `conv6`,
    `small_vgg11`, ...), or any classification model of torchvision (`convnext_tiny`, `vit_b_16`,
    ...)."""
    stem: Literal["auto", "small", "imagenet"] = "auto"
    """First layers of resnet18/34/50. `small`: 3x3 stride 1 without pooling. `auto`: `small` for
    images up to 64 pixels."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation of the ResNets above. `group` makes the result independent of how a batch is
    divided among ranks."""
    width: Count | None = None
    """Channels of the first stage of the ResNets above. Default: 16 for resnet8/20/56, else 64."""
    weights: WeightsFile | None = None
    """File with the initial weights of the run, such as those of another run: `networks.pt` or
    `average.pt` of a checkpoint, or a state dict. They have to fit this network. Default: random
    weights."""


@section(kw_only=True, slots=True, frozen=True)
class ClassificationConfig(Train):
    """Image classification with cross entropy."""

    model: Annotated[Model, NETWORK] = field(default_factory=Model)
    """The network."""
    label_smoothing: Fraction = 0.0
    """Label smoothing of the cross entropy in training."""

    def unknown_names(self) -> Iterator[KeyProblem]:
        """A network that neither this package nor torchvision has."""
        known = OWN | TORCHVISION
        if self.model.name not in known:
            import difflib  # only for the error

            near = difflib.get_close_matches(self.model.name, sorted(known), n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else "docs/config.md names networks"
            problem = f"there is no model {self.model.name!r}"
            yield KeyProblem("model.name", problem, hint)
