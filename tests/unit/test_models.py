"""The networks: sizes as published, torchvision's names, options, and errors for the user."""

import pytest
import torch
import torchvision

from hpc_amp.models import build_model
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.classification.config import Model


def build(classes: int = 10, channels: int = 3, image_size: int = 32, **model: object):
    return build_model(Model(**model), classes=classes, channels=channels, image_size=image_size)


def count(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet8", 0.08), ("resnet20", 0.27), ("resnet56", 0.86)]
)
def test_narrow_resnets_have_the_published_sizes(name: str, millions: float) -> None:
    # Table 6 of the paper says 0.27 and 0.85 M; our projections add 1 % at most.
    assert count(build(name=name)) == pytest.approx(millions * 1e6, rel=0.03)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_imagenet_resnets_are_torchvisions(name: str) -> None:
    with torch.device("meta"):  # to draw weights takes longer than the comparison
        ours = build(name=name, classes=1000, image_size=224)
    theirs = torchvision.models.get_model(name, weights=None)
    ours.load_state_dict(theirs.state_dict(), assign=True)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))


def test_small_stem_keeps_the_resolution() -> None:
    with torch.device("meta"):
        network = build(name="resnet18")
        assert count(network) == 11_173_962  # as in every CIFAR repository
        assert network.conv1.kernel_size == (3, 3)
        assert build(name="resnet18", image_size=224).conv1.kernel_size == (7, 7)
        assert build(name="resnet18", stem="imagenet").conv1.kernel_size == (7, 7)
        assert build(name="resnet18", stem="small", image_size=224).conv1.kernel_size == (3, 3)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("channels", [1, 3])
def test_logits_of_any_width_and_channels(name: str, norm: str, channels: int) -> None:
    network = build(name=name, norm=norm, width=12, channels=channels, classes=7)
    logits = network(torch.randn(2, channels, 28, 28))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_group_norm_is_independent_of_the_batch() -> None:
    network = build(name="resnet8", norm="group")
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        apart = torch.cat([network(part) for part in images.split(1)])
        torch.testing.assert_close(network(images), apart)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    assert network.layer1[0].bn1.num_groups == 4  # of 4 channels


def test_each_block_starts_as_its_shortcut() -> None:
    network = build(name="resnet20")
    assert not network.layer1[0].bn2.weight.any()
    assert network.layer1[0].bn1.weight.all()


def test_any_classification_model_of_torchvision() -> None:
    network = build(name="shufflenet_v2_x0_5", classes=5)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "resnet19"}, "did you mean .*resnet18"),
        ({"name": "convnext_tin"}, "did you mean .*convnext_tiny"),
        ({"name": "?"}, "try one of resnet8"),
        ({"name": "fasterrcnn_resnet50_fpn"}, "no model"),
        ({"name": "vit_b_16", "norm": "group"}, "model.norm: vit_b_16"),
        ({"name": "vit_b_16", "width": 8}, "model.width: vit_b_16"),
        ({"name": "vit_b_16", "stem": "small"}, "model.stem: vit_b_16"),
        ({"name": "resnet8", "stem": "imagenet"}, "model.stem: resnet8"),
        ({"name": "vit_b_16", "channels": 1}, "channels"),
    ],
)
def test_errors_are_one_line_for_the_user(model: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build(**model)
    assert "\n" not in str(caught.value)
