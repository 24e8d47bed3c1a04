"""How far generated images are from real ones: a Fréchet distance on a small fixed feature network.

The distance is that of the well-known FID (Heusel et al., 2017), but the features are not those of
a trained Inception network, which nobody can download on a compute node: they come from a small
convolutional network whose weights are random and always the same. It tells better samples of one
data set from worse ones (docs/gan.md shows how well) and is comparable with nothing else: not with
a published FID, and not between data sets, image sizes or numbers of images.

Features and statistics are float64, outside autocast, so that a run's precision does not matter.
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
"""Channels of the layers of the feature network, each at half the resolution of the one before."""
GRID = 2
"""The last layer is averaged over GRID x GRID equal parts of the image: features know the place."""


class FeatureNetwork(nn.Sequential):
    """Images [N, channels, H, W] from -1 to 1 to features [N, 128]: three strided convolutions with
    He initialisation, in float64. Equal for equal `channels`, on every machine."""

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
        """The `moments` of no image."""
        size = 1 + WIDTHS[-1] * GRID**2
        return torch.zeros(size, size, dtype=torch.float64, device=next(self.parameters()).device)

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            features = images.double()
            for layer in self:
                features = layer(features)
            return features


def moments(features: Tensor) -> Tensor:
    """Number, sums and sums of products of `features` [N, d], as one symmetric matrix
    [1 + d, 1 + d]: those of two parts of a set add up to those of the whole."""
    extended = F.pad(features, (1, 0), value=1.0)
    return extended.T @ extended


def add_over_ranks(parts: Tensor, world: World) -> Tensor:
    """The sum of every rank's `parts`, on every rank. A collective call."""
    if not is_alone(world):
        dist.all_reduce(parts)
    return parts


def frechet_distance(real: Tensor, made: Tensor) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) over tr(C1), of real and generated images given
    by their `moments`: 0 for equal statistics, 1 where the generated images are as far away as real
    ones are from each other. NaN where they are not finite."""
    if not bool(made.isfinite().all()):
        return math.nan
    (mean, covariance), (made_mean, made_covariance) = map(_gaussian, (real, made))
    # (C1 C2)^(1/2) has the trace of (R C2 R)^(1/2) with R = C1^(1/2), which is symmetric.
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    shared = torch.linalg.eigvalsh(root @ made_covariance @ root).clamp(min=0).sqrt().sum()
    spread = covariance.trace()
    distance = (mean - made_mean).square().sum() + spread + made_covariance.trace() - 2 * shared
    return float(distance / spread)


def _gaussian(total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d]."""
    total = total.cpu()
    mean = total[0, 1:] / total[0, 0]
    return mean, total[1:, 1:] / total[0, 0] - mean.outer(mean)
