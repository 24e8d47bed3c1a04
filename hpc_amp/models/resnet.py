"""Residual networks for images of any size.

The networks are those of Deep Residual Learning for Image Recognition (He et al., 2016): the narrow
ones with three stages of its section 4.2 (`resnet8`, `resnet20`, `resnet56`), and `resnet18`,
`resnet34`, `resnet50`. Parameters have the names of torchvision, so its weights can be loaded into
networks of the same shape.

Every change of shape uses a projection (1x1 convolution and norm). In the narrow networks, the
paper pads channels with zeros instead (option A). That saves 1 % of the parameters, but needs
copies that break the channels-last order, and would be a second kind of shortcut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

Norm = Callable[[int], "nn.BatchNorm2d | nn.GroupNorm"]


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation (Wu & He, 2018) with at most 32 groups, of at least 4 channels each if
    the number of channels allows it."""
    return nn.GroupNorm(math.gcd(channels, max(1, min(32, channels // 4))), channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(channels_in, width, stride, norm)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(out)
        return activated


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut. The 3x3 one has the stride (ResNet v1.5)."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = norm(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(channels_in, channels_out, stride, norm)
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(out)
        return activated


def _projection(channels_in: int, channels_out: int, stride: int, norm: Norm) -> nn.Module | None:
    if stride == 1 and channels_in == channels_out:
        return None
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), norm(channels_out)
    )


class ResNet(nn.Module):
    """Maps images [N, channels, H, W] to logits [N, classes].

    `depths`: the number of blocks in each stage.
    `width`: the channels of the first stage, before the expansion of the block. Each further stage
    has twice as many, at half the resolution.
    `small_stem`: begin with a 3x3 convolution, instead of the strided 7x7 convolution and pooling
    for ImageNet.
    `norm`: makes a normalisation layer for a number of channels.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        width: int,
        small_stem: bool,
        norm: Norm,
        classes: int,
        channels: int,
    ) -> None:
        super().__init__()
        kernel, stride = (3, 1) if small_stem else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, padding=1)
        self.stages = [f"layer{stage + 1}" for stage in range(len(depths))]
        features = width
        for stage, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            blocks: list[nn.Module] = []
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(features, width << stage, stride, norm))
                features = (width << stage) * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.fc = nn.Linear(features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


FAMILY: dict[str, dict[str, Any]] = {
    "resnet8": {"block": BasicBlock, "depths": (1, 1, 1), "width": 16},
    "resnet20": {"block": BasicBlock, "depths": (3, 3, 3), "width": 16},
    "resnet56": {"block": BasicBlock, "depths": (9, 9, 9), "width": 16},
    "resnet18": {"block": BasicBlock, "depths": (2, 2, 2, 2), "width": 64},
    "resnet34": {"block": BasicBlock, "depths": (3, 4, 6, 3), "width": 64},
    "resnet50": {"block": Bottleneck, "depths": (3, 4, 6, 3), "width": 64},
}
"""For each network, its block, the number of blocks in each stage, and its default width."""
