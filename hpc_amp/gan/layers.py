"""Layers of image generators: convolution blocks, residual blocks, and how they are initialised."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.norms import make_norm
from hpc_amp.gan.spectral import SpectralNorm, spectral_norm

NormName = Literal["none", "instance", "batch", "layer"]
ActivationName = Literal["none", "relu", "leaky", "tanh"]


def activation(name: ActivationName) -> nn.Module:
    """The activation of this name; `leaky` has the slope 0.2 that GANs use."""
    if name == "relu":
        return nn.ReLU()
    if name == "leaky":
        return nn.LeakyReLU(0.2)
    if name == "tanh":
        return nn.Tanh()
    return nn.Identity()


def reflect_pad(x: Tensor, border: int) -> Tensor:
    """[B, C, H, W] with `border` more pixels on each side, mirrored at the outermost ones.

    The backward pass of torch's own padding is not deterministic on GPUs, and is refused with
    `train.deterministic`. In that case slices are put together, with the same result.
    """
    if border == 0:
        return x
    if not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return F.pad(x, (border, border, border, border), mode="reflect")
    return _mirror(_mirror(x, border, 2), border, 3)


def _mirror(x: Tensor, border: int, dimension: int) -> Tensor:
    size = x.shape[dimension]
    before = x.narrow(dimension, 1, border).flip(dimension)
    after = x.narrow(dimension, size - 1 - border, border).flip(dimension)
    return torch.cat((before, x, after), dimension)


class ReflectConv2d(nn.Conv2d):
    """A convolution whose padding is mirrored (`reflect_pad`)."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        border = self.padding[0]
        assert isinstance(border, int)
        return F.conv2d(reflect_pad(input, border), weight, bias, self.stride)


class ConvBlock(nn.Sequential):
    """Padding, convolution, normalisation, activation: [B, inputs, H, W] to [B, outputs, H/s, W/s].

    The padding keeps the size where `stride` is 1. `spectral` limits the largest singular value of
    the weight to 1 (`hpc_amp.gan.spectral`); `none` leaves the weight as it is. A convolution that
    an instance, batch or layer normalisation follows has no bias: the normalisation removes it.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        norm: NormName = "none",
        activation_name: ActivationName = "relu",
        spectral: SpectralName = "none",
        padding: Literal["zeros", "reflect"] = "reflect",
    ) -> None:
        kind = ReflectConv2d if padding == "reflect" else nn.Conv2d
        border, bias = (kernel - 1) // 2, norm == "none"
        conv = kind(inputs, outputs, kernel, stride, padding=border, bias=bias)
        super().__init__(
            spectral_norm(conv, spectral), make_norm(norm, outputs), activation(activation_name)
        )


class LinearBlock(nn.Sequential):
    """A linear layer and its activation: [B, inputs] to [B, outputs]."""

    def __init__(
        self, inputs: int, outputs: int, *, activation_name: ActivationName = "relu"
    ) -> None:
        super().__init__(nn.Linear(inputs, outputs), activation(activation_name))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside the identity (He et al., 2016): [B, channels, H, W] to the
    same shape."""

    def __init__(
        self,
        channels: int,
        *,
        norm: NormName = "instance",
        spectral: SpectralName = "none",
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvBlock(channels, channels, norm=norm, spectral=spectral),
            ConvBlock(channels, channels, norm=norm, activation_name="none", spectral=spectral),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        out: Tensor = x + self.body(x)
        return out


def upsample(x: Tensor) -> Tensor:
    """[B, C, H, W] to [B, C, 2H, 2W]: each pixel four times."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class Upsample(nn.Module):
    """`upsample` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C, 2H, 2W]."""
        return upsample(x)


def pixel_mean(x: Tensor) -> Tensor:
    """[B, C, H, W] to [B, C], in the type of `x`; the mean is computed in fp32."""
    return x.float().mean((2, 3)).to(x.dtype)


class PixelMean(nn.Module):
    """`pixel_mean` as a module: [B, C, H, W] to [B, C, 1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, 1, 1]."""
        return pixel_mean(x)[:, :, None, None]


@torch.no_grad()
def initialize(
    network: nn.Module, kind: Literal["xavier", "normal", "kaiming"] = "xavier", gain: float = 0.02
) -> None:
    """Draw the weights of all convolutions and linear layers of `network` anew from the global
    generator; biases become 0.

    `xavier` (Glorot & Bengio, 2010) and `normal` multiply by `gain`, which is 0.02 in the GANs of
    pix2pix and its successors; `kaiming` (He et al., 2015) does not use it.
    """
    for module in network.modules():
        if not isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            continue
        # Under a spectral norm, `weight` is computed from the parameter `original`.
        weight, norm = module.weight, None
        parametrized = getattr(module, "parametrizations", None)
        if parametrized is not None and "weight" in parametrized:
            weight, norm = parametrized["weight"].original, parametrized["weight"][0]
        if kind == "xavier":
            nn.init.xavier_normal_(weight, gain=gain)
        elif kind == "normal":
            nn.init.normal_(weight, std=gain)
        else:
            nn.init.kaiming_normal_(weight, a=0.2)
        if isinstance(norm, SpectralNorm):
            norm.settle(weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
