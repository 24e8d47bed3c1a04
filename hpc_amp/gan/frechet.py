"""The distance of generated images from real ones: a Fréchet distance on a small feature network.

It is computed like the FID (Heusel et al., 2017), but on other features. A trained Inception
network cannot be downloaded on a compute node, so the features come from a small convolutional
network with fixed random weights. The distance tells better samples of one data set from worse ones
(docs/gan.md shows how well). It cannot be compared with a published FID, nor between data sets,
image sizes or numbers of images.

Features and statistics are float64, outside of autocast, so the precision of a run has no effect.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.data.order import generator
from hpc_amp.distributed.collect import is_alone
from hpc_amp.distributed.world import World

WIDTHS = (16, 32, 32)
"""The channels of each layer of the feature network. Each layer has half the resolution of the one
before it."""
GRID = 2
"""The last layer's output is averaged over GRID x GRID equal parts of the image, so that features
depend on the position."""
_ROUNDING = 1e-12
"""Below this part of the squared mean, a variance is nothing but rounding."""


class FeatureNetwork(nn.Sequential):
    """Maps images [N, channels, H, W] with values from -1 to 1 to features [N, 128].

    It has three strided convolutions with He initialisation, in float64. Its weights only depend on
    `channels`, and are the same on every machine.
    """

    def __init__(self, channels: int) -> None:
        stream = generator("feature network", channels)
        layers: list[nn.Module] = []
        for width in WIDTHS:
            layer = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
            weights = torch.randn(layer.weight.shape, generator=stream, dtype=torch.float64)
            layer.weight = nn.Parameter(weights * (2 / (9 * channels)) ** 0.5, requires_grad=False)
            layers += [layer, nn.ReLU(inplace=True)]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(GRID), nn.Flatten())

    def no_moments(self) -> Tensor:
        """The `moments` of an empty set of images."""
        size = 1 + WIDTHS[-1] * GRID**2
        return torch.zeros(size, size, dtype=torch.float64, device=next(self.parameters()).device)

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            features = images.double()
            for layer in self:
                features = layer(features)
            return features


def moments(features: Tensor) -> Tensor:
    """The count, the sums and the sums of products of `features` [N, d], as a symmetric matrix
    [1 + d, 1 + d]. The moments of two disjoint sets add up to those of their union."""
    extended = F.pad(features, (1, 0), value=1.0)
    return extended.T @ extended


def add_over_ranks(parts: Tensor, world: World) -> Tensor:
    """The sum of `parts` over all ranks, on every rank. A collective call."""
    if not is_alone(world):
        dist.all_reduce(parts)
    return parts


def frechet_distance(real: Tensor, made: Tensor) -> float:
    """The Fréchet distance |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), divided by tr(C1).

    m1 and C1 are the mean and covariance of real images, m2 and C2 those of generated images.
    `real` and `made` are the `moments` of their features. The result is 0 for equal statistics, and
    1 if generated images are as far from real images as these are from each other. It is NaN if
    `made` is not finite, and infinite if the real images are all the same.
    """
    if not bool(made.isfinite().all()):
        return math.nan
    (mean, covariance), (made_mean, made_covariance) = map(_gaussian, (real, made))
    spread = _spread(mean, covariance)
    if spread == 0:
        return math.inf
    # (C1 C2)^(1/2) has the same trace as (R C2 R)^(1/2) with R = C1^(1/2), which is symmetric.
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ made_covariance @ root).clamp(min=0).sqrt().sum()
    distance = (mean - made_mean).square().sum() + spread + made_covariance.trace() - 2 * shared
    return float(distance) / spread


def relative_spread(real: Tensor, made: Tensor) -> float:
    """How much generated images differ from each other, compared with real ones: the trace of the
    covariance of their features, divided by that of real images. 0 if all are the same image. The
    arguments are those of `frechet_distance`. NaN if `made` is not finite, and infinite if the real
    images are all the same."""
    if not bool(made.isfinite().all()):
        return math.nan
    spread, made_spread = (_spread(*_gaussian(total)) for total in (real, made))
    return made_spread / spread if spread > 0 else math.inf


def _spread(mean: Tensor, covariance: Tensor) -> float:
    """How much images differ from each other: the trace of the covariance of their features. 0 for
    equal images, also where rounding leaves something else."""
    spread = float(covariance.trace())
    return spread if spread > _ROUNDING * float(mean.square().sum()) else 0.0


def _gaussian(total: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [d] and covariance [d, d] of a set, from its moments."""
    total = total.cpu()
    mean = total[0, 1:] / total[0, 0]
    return mean, total[1:, 1:] / total[0, 0] - mean.outer(mean)
