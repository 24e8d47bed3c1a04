"""The generator of FUNIT: an encoder of content, an encoder of style, and a decoder of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpc_amp.gan.layers import (
    ConvBlock,
    LinearBlock,
    ReflectConv2d,
    ResidualBlock,
    Upsample,
    pixel_mean,
)
from hpc_amp.gan.norms import AdaptiveInstanceNorm
from hpc_amp.tasks.funit.config import FunitNetworks


class ContentEncoder(nn.Sequential):
    """Images [B, 3, H, W] to their layout [B, C, H / 2^n, W / 2^n]. Instance normalisation removes
    most information about the class."""

    def __init__(self, config: FunitNetworks) -> None:
        channels = config.width
        layers: list[nn.Module] = [ConvBlock(3, channels, 7, norm="instance")]
        for _ in range(config.content_halvings):
            layers.append(ConvBlock(channels, 2 * channels, 4, 2, norm="instance"))
            channels *= 2
        layers += [ResidualBlock(channels) for _ in range(config.residual_blocks)]
        super().__init__(*layers)


class PooledEncoder(nn.Module):
    """Images [B, 3, H, W] to [B, `size`]: convolutions without normalisation, then the mean over
    pixels."""

    def __init__(self, config: FunitNetworks, size: int) -> None:
        super().__init__()
        channels = config.width
        layers: list[nn.Module] = [ConvBlock(3, channels, 7)]
        for _ in range(config.style_halvings):
            after = min(2 * channels, 16 * config.width)
            layers.append(ConvBlock(channels, after, 4, 2))
            channels = after
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, size)

    def forward(self, images: Tensor) -> Tensor:
        """One vector for each image."""
        vectors: Tensor = self.head(pixel_mean(self.layers(images)))
        return vectors


class StyleEncoder(nn.Module):
    """The style code of references. It does not depend on the content image; a subclass in which it
    does overrides `adapt`."""

    def __init__(self, config: FunitNetworks) -> None:
        super().__init__()
        self.encoder = PooledEncoder(config, config.style_size)

    def forward(self, layout: Tensor, references: Sequence[Tensor]) -> list[Tensor]:
        """For each of `references`, which are [B, K, 3, H, W] with any K each, the style code of
        its K images for the content image with `layout` [B, C, h, w]: [B, `style_size`]."""
        return [self.adapt(layout, code) for code in mean_codes(self.encoder, references)]

    def adapt(self, layout: Tensor, code: Tensor) -> Tensor:
        """The style code [B, `style_size`] for the content image with `layout` [B, C, h, w] of
        references with the mean code `code` [B, `style_size`]. Here it is the code itself."""
        return code


def mean_codes(encoder: nn.Module, references: Sequence[Tensor]) -> list[Tensor]:
    """The mean codes [B, S] of each of `references` [B, K, 3, H, W], in one pass of `encoder`."""
    codes = encoder(torch.cat([each.flatten(0, 1) for each in references]))
    parts = codes.split([each.shape[0] * each.shape[1] for each in references])
    return [
        part.unflatten(0, each.shape[:2]).float().mean(1).to(part.dtype)
        for part, each in zip(parts, references, strict=True)
    ]


def unbiased(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    """A convolution before AdaIN, which would remove a bias: the gradient of one is rounding noise,
    and Adam makes steps of full size of it."""
    return ReflectConv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)


class AdaptiveResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with AdaIN beside the identity."""

    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.first = AdaptiveBlock(channels, channels, 3, style)
        self.second = unbiased(channels, channels, 3)
        self.norm = AdaptiveInstanceNorm(channels, style)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """The same shape as `x`."""
        out: Tensor = x + self.norm(self.second(self.first(x, style)), style)
        return out


class AdaptiveBlock(nn.Module):
    """Convolution, AdaIN, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, style: int) -> None:
        super().__init__()
        self.conv = unbiased(inputs, outputs, kernel)
        self.norm = AdaptiveInstanceNorm(outputs, style)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, H, W]."""
        return torch.relu(self.norm(self.conv(x), style))


class Decoder(nn.Module):
    """A layout [B, C, h, w] and a style code to images [B, 3, H, W] from -1 to 1."""

    def __init__(self, config: FunitNetworks) -> None:
        super().__init__()
        style, channels = config.mlp_width, config.layout_channels
        self.mlp = nn.Sequential(
            LinearBlock(config.style_size, style),
            LinearBlock(style, style),
        )
        self.upsample = Upsample()
        self.residual = nn.ModuleList(
            AdaptiveResidualBlock(channels, style) for _ in range(config.residual_blocks)
        )
        self.enlarging = nn.ModuleList()
        for _ in range(config.content_halvings):
            self.enlarging.append(AdaptiveBlock(channels, channels // 2, 5, style))
            channels //= 2
        self.head = ConvBlock(channels, 3, 7, activation_name="tanh")

    def forward(self, layout: Tensor, code: Tensor) -> Tensor:
        """The images."""
        style = self.mlp(code)
        for block in self.residual:
            layout = block(layout, style)
        for block in self.enlarging:
            layout = block(self.upsample(layout), style)
        images: Tensor = self.head(layout)
        return images


class Generator(nn.Module):
    """Draws the content of an image in the style of others.

    `style` computes the style codes of references.
    """

    def __init__(self, config: FunitNetworks, style: StyleEncoder) -> None:
        super().__init__()
        self.content = ContentEncoder(config)
        self.style = style
        self.decoder = Decoder(config)

    def forward(
        self, content: Tensor, style: Tensor, reconstruct: bool = True
    ) -> dict[str, Tensor]:
        """`translation`, the content images [B, 3, H, W] in the style of their references `style`
        [B, K, 3, H, W], and `reconstruction`, the content images in their own style, if it is asked
        for. Both are [B, 3, H, W] from -1 to 1."""
        references = [style, content[:, None]] if reconstruct else [style]
        layout = self.content(content)
        codes = self.style(layout, references)
        images = self.decoder(torch.cat([layout] * len(codes)), torch.cat(codes))
        names = ("translation", "reconstruction")[: len(codes)]
        return dict(zip(names, images.chunk(len(codes)), strict=True))

    def translate(self, content: Tensor, style: Tensor) -> Tensor:
        """The content images [B, 3, H, W] in the style of K references each, [B, K, 3, H, W] with
        any K: [B, 3, H, W] from -1 to 1."""
        translation: Tensor = self(content, style, reconstruct=False)["translation"]
        return translation

    def reference_codes(self, references: Tensor) -> Tensor:
        """The codes of references [K, 3, H, W], before the content image is known: [K, S]. Their
        mean is the `code` of `translate_to`."""
        codes: Tensor = self.style.encoder(references)
        return codes

    def translate_to(self, content: Tensor, code: Tensor) -> Tensor:
        """The content images [B, 3, H, W] in the style of references with the mean code `code`
        [1, S] or [B, S]: [B, 3, H, W] from -1 to 1."""
        layout = self.content(content)
        images: Tensor = self.decoder(
            layout, self.style.adapt(layout, code.expand(len(content), -1))
        )
        return images
