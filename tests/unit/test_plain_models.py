"""The networks without shortcuts: sizes as published, any image, errors for the user."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpc_amp.models import build_model
from hpc_amp.models.plain import PLAIN
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.classification.config import Model


def build(name: str, image_size: int = 32, channels: int = 3, **model: object) -> nn.Module:
    config = Model(name=name, **model)  # type: ignore[arg-type]
    return build_model(config, classes=10, channels=channels, image_size=image_size)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "image_size", "channels", "parameters"),
    [("fc", 28, 1, 266_610), ("lenet5", 28, 1, 61_706), ("lenet5", 32, 1, 61_706)],
)
def test_lecuns_networks_have_their_sizes(
    name: str, image_size: int, channels: int, parameters: int
) -> None:
    assert count(build(name, image_size, channels)) == parameters


@pytest.mark.parametrize(("name", "millions"), [("conv2", 4.3), ("conv4", 2.4), ("conv6", 2.3)])
def test_the_lottery_tickets_networks_have_their_sizes(name: str, millions: float) -> None:
    assert count(build(name)) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("layers", [11, 13, 16, 19])
def test_vgg_has_as_many_layers_as_its_name_says(layers: int) -> None:
    """Two of the three dense layers are left out."""
    network = build(f"small_vgg{layers}")
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(nn.Conv2d) == layers - 3
    assert kinds.count(nn.BatchNorm2d) == layers - 3
    assert kinds.count(nn.Linear) == 1


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize(("image_size", "channels"), [(32, 3), (48, 1)])
def test_they_take_images_and_learn(name: str, image_size: int, channels: int) -> None:
    network = build(name, image_size, channels)
    logits = network(torch.randn(2, channels, image_size, image_size))
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_model_of_several_outputs_gives_one() -> None:
    assert build("googlenet").train()(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("small_vgg11", {"image_size": 28}, "small_vgg11 needs images of 32 pixels or more"),
        ("conv6", {"image_size": 8}, "conv6 needs images of 16 pixels or more"),
        ("fc", {"norm": "group"}, "model.norm: fc is plain and has no such setting"),
        ("lenet", {}, "there is no model 'lenet'; did you mean lenet5"),
    ],
)
def test_what_cannot_be_is_refused(name: str, more: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, **more)  # type: ignore[arg-type]
