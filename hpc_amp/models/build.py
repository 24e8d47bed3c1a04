"""Networks by name: the ResNets here, and every classification model of torchvision."""

from __future__ import annotations

import difflib

import torchvision
from torch import nn

from hpc_amp.config import schema
from hpc_amp.models.resnet import FAMILY, ResNet, group_norm
from hpc_amp.tasks.base import ModelError

SMALL_IMAGE = 64
"""Largest side in pixels of what counts as a small image."""


def build_model(model: schema.Model, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """The network that `model` describes, randomly initialised, on the CPU.

    It maps images [N, channels, image_size, image_size] to logits [N, classes]. Raises ModelError,
    with one line for the user, for an unknown name or a setting that the network does not have.
    """
    if model.name in FAMILY:
        return _resnet(model, classes, channels, image_size)
    _check_torchvision(model, channels)
    return torchvision.models.get_model(model.name, weights=None, num_classes=classes)


def _resnet(model: schema.Model, classes: int, channels: int, image_size: int) -> ResNet:
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


def _check_torchvision(model: schema.Model, channels: int) -> None:
    # The classification models alone: those of torchvision.models.detection etc. want other inputs.
    known = torchvision.models.list_models(module=torchvision.models)
    if model.name not in known:
        near = difflib.get_close_matches(model.name, sorted({*FAMILY, *known}), n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"try one of {', '.join(FAMILY)}"
        raise ModelError(f"model.name: there is no model {model.name!r}; {hint}")
    default = schema.Model()
    for key in ("stem", "norm", "width"):
        if getattr(model, key) == getattr(default, key):
            continue
        raise ModelError(
            f"model.{key}: {model.name} is torchvision's and has no such setting; "
            f"it exists for {', '.join(FAMILY)}"
        )
    if channels != 3:
        raise ModelError(
            f"model.name: {model.name} wants images of 3 channels, and these have {channels}; "
            f"use one of {', '.join(FAMILY)}"
        )
