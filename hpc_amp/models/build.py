"""Networks by name: ResNets and plain networks of this package, and every classification model of
torchvision."""

from __future__ import annotations

import difflib

from torch import nn

from hpc_amp.models.plain import PLAIN
from hpc_amp.models.resnet import FAMILY, ResNet, group_norm
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.classification.config import Model

SMALL_IMAGE = 64
"""The largest side of a small image in pixels."""

# In training, these two return additional logits, for additional losses.
_SEVERAL_OUTPUTS = ("googlenet", "inception_v3")


def build_model(model: Model, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """Build the network that `model` describes, with random weights, on the CPU.

    It maps images [N, channels, image_size, image_size] to logits [N, classes]. Raises ModelError,
    with one line for the user, for an unknown name or a setting that the network does not have.
    """
    if model.name in FAMILY:
        return _resnet(model, classes, channels, image_size)
    if model.name in PLAIN:
        _check_settings(model, "plain")
        smallest = 32 if model.name.startswith("small_vgg") else 16
        if model.name != "fc" and image_size < smallest:
            raise ModelError(f"model.name: {model.name} needs images of {smallest} pixels or more")
        return PLAIN[model.name](classes, channels, image_size)
    import torchvision  # it takes about as long as torch, and most networks do not need it

    _check_torchvision(model, channels)
    more = {"aux_logits": False, "init_weights": True} if model.name in _SEVERAL_OUTPUTS else {}
    return torchvision.models.get_model(model.name, weights=None, num_classes=classes, **more)


def _resnet(model: Model, classes: int, channels: int, image_size: int) -> ResNet:
    """A ResNet of this package. Raises ModelError for a stem that it does not have."""
    shape = FAMILY[model.name]
    narrow = len(shape["depths"]) == 3
    if narrow and model.stem == "imagenet":
        raise ModelError(f"model.stem: {model.name} is for small images and has no imagenet stem")
    small = model.stem == "small" or (model.stem == "auto" and image_size <= SMALL_IMAGE)
    return ResNet(
        shape["block"],
        shape["depths"],
        width=model.width or shape["width"],
        small_stem=narrow or small,
        norm=group_norm if model.norm == "group" else nn.BatchNorm2d,
        classes=classes,
        channels=channels,
    )


def _check_torchvision(model: Model, channels: int) -> None:
    """Raise ModelError if torchvision has no such classification model, or it does not fit the
    settings or the images."""
    import torchvision

    # Only classification models: those of torchvision.models.detection etc. need other inputs.
    known = torchvision.models.list_models(module=torchvision.models)
    if model.name not in known:
        names = sorted({*FAMILY, *PLAIN, *known})
        near = difflib.get_close_matches(model.name, names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"try one of {', '.join(FAMILY)}"
        raise ModelError(f"model.name: there is no model {model.name!r}; {hint}")
    _check_settings(model, "torchvision's")
    if channels != 3:
        raise ModelError(
            f"model.name: {model.name} needs images of 3 channels, but these have {channels}; "
            f"use one of {', '.join(FAMILY)}"
        )


def _check_settings(model: Model, kind: str) -> None:
    """Raise ModelError for a setting that only the ResNets of this package have."""
    default = Model()
    for key in ("stem", "norm", "width"):
        if getattr(model, key) != getattr(default, key):
            raise ModelError(
                f"model.{key}: {model.name} is {kind} and has no such setting; "
                f"it exists for {', '.join(FAMILY)}"
            )
