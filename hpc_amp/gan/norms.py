"""Normalisations: of instances, adaptive (AdaIN), and spatially adaptive (SPADE).

Statistics are computed in fp32, also under autocast: the sum of squares of half-precision
activations overflows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class InstanceNorm(nn.Module):
    """Mean 0 and variance 1 over the pixels of each channel of each image (Ulyanov et al., 2016),
    without parameters: [B, C, H, W] to the same shape, in the type of the input."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and type; statistics in fp32."""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            variance, mean = torch.var_mean(wide, dim=(2, 3), correction=0, keepdim=True)
            return ((wide - mean) * torch.rsqrt(variance + self.eps)).to(x.dtype)


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 over all values of an image, then a scale and a shift for each channel
    (as the decoder of MUNIT has it): [B, C, H, W] to the same shape."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and type; statistics in fp32."""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            variance, mean = torch.var_mean(wide, dim=(1, 2, 3), correction=0, keepdim=True)
            wide = (wide - mean) * torch.rsqrt(variance + self.eps)
            weight, bias = (value.float()[:, None, None] for value in (self.weight, self.bias))
            return (wide * weight + bias).to(x.dtype)


class AdaptiveInstanceNorm(nn.Module):
    """AdaIN (Huang & Belongie, 2017): instance normalisation whose scale and shift are a linear
    function of a style: x [B, channels, H, W] and style [B, style] to [B, channels, H, W]."""

    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.norm = InstanceNorm()
        self.affine = nn.Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Normalised `x`, times 1 + scale, plus shift."""
        scale, shift = self.affine(style)[:, :, None, None].chunk(2, dim=1)
        out: Tensor = self.norm(x) * (1 + scale) + shift
        return out


class Spade(nn.Module):
    """SPADE (Park et al., 2019): a normalisation without parameters, whose scale and shift at each
    pixel are computed from a map: x [B, channels, H, W] and map [B, inputs, any, any] to
    [B, channels, H, W].

    `norm` is `instance`, `batch` or `none`: scale and shift alone. Batch statistics depend on how a
    batch is divided among ranks unless `train.sync_batchnorm` is on; instance statistics do not.
    """

    def __init__(
        self, channels: int, inputs: int, *, hidden: int = 128, kernel: int = 3, norm: str = "batch"
    ) -> None:
        super().__init__()
        self.norm: nn.Module
        if norm == "batch":
            self.norm = nn.BatchNorm2d(channels, affine=False)
        else:
            self.norm = make_norm(norm, channels)
        padding = kernel // 2
        self.shared = nn.Sequential(
            nn.Conv2d(inputs, hidden, kernel, padding=padding), nn.ReLU(inplace=True)
        )
        self.scale = nn.Conv2d(hidden, channels, kernel, padding=padding)
        self.shift = nn.Conv2d(hidden, channels, kernel, padding=padding)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalised `x`, times 1 + scale, plus shift."""
        hidden = self.shared(F.interpolate(condition, x.shape[2:], mode="nearest"))
        out: Tensor = self.norm(x) * (1 + self.scale(hidden)) + self.shift(hidden)
        return out


def make_norm(name: str, channels: int) -> nn.Module:
    """The normalisation `none`, `instance`, `batch` or `layer` for [B, channels, H, W]."""
    if name == "instance":
        return InstanceNorm()
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "layer":
        return LayerNorm(channels)
    return nn.Identity()
