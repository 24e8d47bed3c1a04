"""Networks without shortcuts for small images, as used in lessons and in papers about pruning.

`fc` and `lenet5` are the three-layer perceptron 300-100 and the convolutional network of LeCun et
al. (Gradient-based learning applied to document recognition, 1998). `conv2`, `conv4` and `conv6`
are those of Frankle & Carbin (The lottery ticket hypothesis, 2019): pairs of 3x3 convolutions, each
followed by pooling, then three dense layers. `conv2a`, `conv4a` and `conv6a` end with an average
over the image and one dense layer instead. `small_vgg11` to `small_vgg19` are the VGG networks
(Simonyan & Zisserman, 2015) with batch norm and the same end: torchvision's three dense layers have
120 million weights and are made for 224 pixels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from torch import nn

Stages = tuple[tuple[int, int], ...]
"""For each stage, its channels and its number of convolutions. A stage ends with pooling."""


def perceptron(classes: int, channels: int, image_size: int) -> nn.Module:
    """A perceptron with two hidden layers, of 300 and 100 units."""
    return nn.Sequential(nn.Flatten(), *_dense((channels * image_size**2, 300, 100, classes)))


def lenet5(classes: int, channels: int, image_size: int) -> nn.Module:
    """LeNet-5: two convolutions and three dense layers, with ReLU and max pooling. Images of 28
    pixels are padded to 32, the size that it was designed for."""
    padding = 2 if image_size == 28 else 0
    side = (image_size + 2 * padding - 4) // 2
    side = (side - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dense((16 * side**2, 120, 84, classes)),
    )


def convolutional(
    stages: Stages, *, norm: bool, average: bool
) -> Callable[[int, int, int], nn.Module]:
    """Returns a builder of networks with these stages. With `average`, they end with an average
    over the image and one dense layer, otherwise with three dense layers."""

    def build(classes: int, channels: int, image_size: int) -> nn.Module:
        width = stages[-1][0]
        side = image_size >> len(stages)
        if average:
            end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
        else:
            end = [nn.Flatten(), *_dense((width * side**2, 256, 256, classes))]
        return nn.Sequential(*_convolutions(stages, channels, norm), *end)

    return build


def _convolutions(stages: Stages, channels: int, norm: bool) -> Iterator[nn.Module]:
    for width, depth in stages:
        for _ in range(depth):
            yield nn.Conv2d(channels, width, 3, padding=1, bias=not norm)
            if norm:
                yield nn.BatchNorm2d(width)
            yield nn.ReLU(inplace=True)
            channels = width
        yield nn.MaxPool2d(2)


def _dense(sizes: tuple[int, ...]) -> Iterator[nn.Module]:
    """Dense layers between consecutive sizes, with ReLU between the layers."""
    *hidden, last = itertools.pairwise(sizes)
    for before, after in hidden:
        yield nn.Linear(before, after)
        yield nn.ReLU(inplace=True)
    yield nn.Linear(*last)


_PAIRS: Stages = ((64, 2), (128, 2), (256, 2))
_VGG_WIDTHS = (64, 128, 256, 512, 512)
_VGG_DEPTHS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}

PLAIN: dict[str, Callable[[int, int, int], nn.Module]] = {
    "fc": perceptron,
    "lenet5": lenet5,
    **{f"conv{2 * n}": convolutional(_PAIRS[:n], norm=False, average=False) for n in (1, 2, 3)},
    **{f"conv{2 * n}a": convolutional(_PAIRS[:n], norm=False, average=True) for n in (1, 2, 3)},
    **{
        f"small_vgg{layers}": convolutional(
            tuple(zip(_VGG_WIDTHS, depths, strict=True)), norm=True, average=True
        )
        for layers, depths in _VGG_DEPTHS.items()
    },
}
"""By name, functions that build a network from classes, channels and image size in pixels."""
