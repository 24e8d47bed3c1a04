"""Discriminators: patches at several scales, and with a class projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.layers import ConvBlock, NormName
from hpc_amp.gan.spectral import spectral_norm

Judgement = tuple[list[Tensor], list[list[Tensor]]]
"""Of each scale the logits [B, 1, h, w], and the feature maps of its layers."""


class PatchDiscriminator(nn.Module):
    """Judges overlapping patches (Isola et al., 2017): [B, inputs, H, W] to logits [B, 1, h, w] and
    the feature maps of all layers but the last.

    `layers` convolutions of stride 2, whose channels double from `width` to at most `most`. Then,
    as in that paper, one of stride 1 and one that judges, both 4 x 4: with 3 layers a patch has 70
    x 70 pixels. Without `stride_one`, a 1 x 1 convolution judges (Huang et al., 2018).
    """

    def __init__(
        self,
        inputs: int,
        *,
        width: int = 64,
        layers: int = 3,
        most: int = 512,
        stride_one: bool = True,
        norm: NormName = "instance",
        spectral: SpectralName = "fp32",
    ) -> None:
        super().__init__()
        strides = [2] * layers + [1] * stride_one
        self.blocks = nn.ModuleList()
        channels = inputs
        for level, stride in enumerate(strides):
            after = min(width * 2**level, most)
            self.blocks.append(
                ConvBlock(
                    channels,
                    after,
                    4,
                    stride,
                    norm=norm if level > 0 else "none",
                    activation_name="leaky",
                    spectral=spectral,
                    padding="zeros",
                )
            )
            channels = after
        kernel = 4 if stride_one else 1
        self.head = ConvBlock(channels, 1, kernel, activation_name="none", padding="zeros")

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and feature maps."""
        features = []
        for block in self.blocks:
            x = block(x)
            features.append(x)
        return self.head(x), features


class MultiScaleDiscriminator(nn.Module):
    """Patch discriminators of the image, of half its size, of a quarter (Wang et al., 2018):
    [B, inputs, H, W] to a `Judgement`. Further arguments are those of `PatchDiscriminator`."""

    def __init__(
        self,
        inputs: int,
        *,
        scales: int = 2,
        width: int = 64,
        layers: int = 3,
        stride_one: bool = True,
        norm: NormName = "instance",
        spectral: SpectralName = "fp32",
    ) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            PatchDiscriminator(
                inputs,
                width=width,
                layers=layers,
                stride_one=stride_one,
                norm=norm,
                spectral=spectral,
            )
            for _ in range(scales)
        )

    def forward(self, x: Tensor) -> Judgement:
        """Logits and feature maps of each scale, the largest first."""
        logits, features = [], []
        for number, discriminator in enumerate(self.scales):
            if number > 0:
                x = F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
            of_scale, maps = discriminator(x)
            logits.append(of_scale)
            features.append(maps)
        return logits, features


class ProjectionDiscriminator(nn.Module):
    """A residual discriminator of images of classes (Miyato & Koyama, 2018; FUNIT's form: Liu et
    al., 2019): images [B, inputs, H, W] and classes int64 [B] to logits [B, h, w] and pooled
    features [B, C].

    A logit is a linear function of the features at a pixel, plus their product with a vector of the
    class. `stages` halvings double the channels from `width` to at most `most`.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        width: int = 64,
        stages: int = 4,
        most: int = 1024,
        spectral: SpectralName = "fp32",
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [
            ConvBlock(inputs, width, 7, activation_name="none", spectral=spectral)
        ]
        channels = width
        for _ in range(stages):
            after = min(2 * channels, most)
            blocks += [
                _PreactivationBlock(channels, channels, spectral),
                _PreactivationBlock(channels, after, spectral),
                nn.AvgPool2d(2),
            ]
            channels = after
        blocks.append(nn.LeakyReLU(0.2))
        self.body = nn.Sequential(*blocks)
        self.head = spectral_norm(nn.Conv2d(channels, 1, 1), spectral)
        vectors = nn.Embedding(classes, channels)
        nn.init.normal_(vectors.weight, std=channels**-0.5)  # about the length 1
        self.embedding = spectral_norm(vectors, spectral)

    def forward(self, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and features averaged over pixels (for feature matching)."""
        features = self.body(images)
        vectors = self.embedding(classes)[:, :, None, None]
        logits = self.head(features) + (features * vectors).sum(1, keepdim=True)
        return logits[:, 0], features.float().mean((2, 3))


class _PreactivationBlock(nn.Module):
    """Activation before convolution, twice, beside the identity."""

    def __init__(self, inputs: int, outputs: int, spectral: SpectralName) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LeakyReLU(0.2),
            ConvBlock(inputs, outputs, activation_name="leaky", spectral=spectral),
            ConvBlock(outputs, outputs, activation_name="none", spectral=spectral),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = ConvBlock(inputs, outputs, 1, activation_name="none", spectral=spectral)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shortcut(x) + self.body(x)
        return out


def judge_together(
    discriminator: nn.Module, real: Tensor, fake: Tensor
) -> tuple[Judgement, Judgement]:
    """What a `MultiScaleDiscriminator` says of real and of generated images, in one forward pass:
    under DDP and with batch statistics two passes differ from one (see docs/gan.md)."""
    return halves_of(discriminator(torch.cat([real, fake])))


def halves_of(judgement: Judgement) -> tuple[Judgement, Judgement]:
    """The judgements of the first and of the second half of a batch."""
    logits, features = judgement
    parts = [[part.chunk(2) for part in maps] for maps in features]
    halves = [logit.chunk(2) for logit in logits]
    first = [half[0] for half in halves], [[part[0] for part in maps] for maps in parts]
    second = [half[1] for half in halves], [[part[1] for part in maps] for maps in parts]
    return first, second
