"""The generator of SPADE, and its encoder of styles."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.layers import ConvBlock, initialize, upsample
from hpc_amp.gan.norms import Spade
from hpc_amp.gan.spectral import spectral_norm
from hpc_amp.tasks.spade.config import SpadeNetworks


class SpadeBlock(nn.Module):
    """A residual block whose normalisations see the condition: x [B, inputs, H, W] and condition
    [B, C, any, any] to [B, outputs, H, W] (figure 4 of the paper)."""

    def __init__(self, inputs: int, outputs: int, condition: int, networks: SpadeNetworks) -> None:
        super().__init__()
        spectral = networks.spectral
        middle = min(inputs, outputs)

        def norm(channels: int) -> Spade:
            return Spade(channels, condition, hidden=networks.hidden, norm=networks.norm)

        self.norms = nn.ModuleList([norm(inputs), norm(middle)])
        self.convs = nn.ModuleList(
            [_conv(inputs, middle, 3, spectral), _conv(middle, outputs, 3, spectral)]
        )
        self.shortcut_norm: nn.Module | None = None
        if inputs != outputs:
            self.shortcut_norm = norm(inputs)
            self.shortcut = _conv(inputs, outputs, 1, spectral, bias=False)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, outputs, H, W]."""
        out = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            out = conv(F.leaky_relu(norm(out, condition), 0.2))
        if self.shortcut_norm is not None:
            x = self.shortcut(self.shortcut_norm(x, condition))
        return x + out


class StyleEncoder(nn.Module):
    """Images [B, 3, H, W] to mean and logarithm of the variance of a style, each [B, style]."""

    def __init__(self, size: tuple[int, int], networks: SpadeNetworks) -> None:
        super().__init__()
        spectral = networks.spectral
        height, width = size
        blocks: list[nn.Module] = []
        inputs, outputs = 3, networks.encoder_width
        while min(height, width) > 4:
            blocks.append(
                ConvBlock(
                    inputs,
                    outputs,
                    stride=2,
                    norm="instance",
                    activation_name="leaky",
                    spectral=spectral,
                    padding="zeros",
                )
            )
            inputs, outputs = outputs, min(2 * outputs, 8 * networks.encoder_width)
            height, width = -(-height // 2), -(-width // 2)
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.mean = nn.Linear(inputs * height * width, networks.style)
        self.log_variance = nn.Linear(inputs * height * width, networks.style)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance, in fp32."""
        features = self.body(images)
        return self.mean(features).float(), self.log_variance(features).float()


class SpadeGenerator(nn.Module):
    """A condition [B, `condition`, H, W] to images [B, 3, H, W] from -1 to 1.

    Without a style encoder the smallest feature map is computed from the condition, with one from a
    style vector.
    """

    def __init__(self, condition: int, size: tuple[int, int], networks: SpadeNetworks) -> None:
        super().__init__()
        self.stages = networks.stages
        self.size = size
        top = networks.width * 2 ** (networks.stages - 1)
        height, width = (side // 2**networks.stages for side in size)
        self.encoder: StyleEncoder | None = None
        self.first: nn.Module
        if networks.style_encoder:
            self.encoder = StyleEncoder(size, networks)
            self.first = nn.Sequential(
                nn.Linear(networks.style, top * height * width),
                nn.Unflatten(1, (top, height, width)),
            )
        else:
            self.first = nn.Conv2d(condition, top, 3, padding=1)
        self.head = SpadeBlock(top, top, condition, networks)
        self.middle = nn.ModuleList(SpadeBlock(top, top, condition, networks) for _ in range(2))
        channels = [top // 2**level for level in range(networks.stages)]
        self.up = nn.ModuleList(
            SpadeBlock(before, after, condition, networks)
            for before, after in itertools.pairwise(channels)
        )
        self.last = nn.Conv2d(channels[-1], 3, 3, padding=1)
        initialize(self, "xavier")

    def forward(
        self, condition: Tensor, noise: Tensor | None = None, styled: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Images, and mean and logarithm of the variance of their styles.

        With a style encoder, `noise` [B, style] is normally distributed; the style is that of the
        images `styled` [B, 3, H, W] plus noise, or for None the noise itself.
        """
        mean = log_variance = None
        if self.encoder is None:
            size = tuple(side // 2**self.stages for side in condition.shape[2:])
            x = self.first(F.interpolate(condition, size, mode="nearest"))
        else:
            assert noise is not None
            style = noise
            if styled is not None:
                mean, log_variance = self.encoder(styled)
                style = mean + noise * torch.exp(0.5 * log_variance)
            x = self.first(style.to(condition.dtype))  # half precision with O2 and O3
        x = upsample(self.head(x, condition))
        for block in self.middle:
            x = block(x, condition)
        for block in self.up:
            x = block(upsample(x), condition)
        images = torch.tanh(self.last(F.leaky_relu(x, 0.2)).float())
        return images, mean, log_variance


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    spectral: SpectralName,
    *,
    bias: bool = True,
) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
    return spectral_norm(conv, spectral)
