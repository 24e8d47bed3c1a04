"""Networks that UNIT and MUNIT share: encoder, decoder, discriminators, and how a generator that
translates between two domains is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hpc_amp.gan.discriminators import MultiScaleDiscriminator, judge_together
from hpc_amp.gan.layers import ConvBlock, ResidualBlock, Upsample, initialize
from hpc_amp.gan.penalties import r1_penalty
from hpc_amp.gan.unpaired_config import Translation
from hpc_amp.tasks.base import ModelError

Direction = Literal["a2b", "b2a"]
"""From which domain to which."""
Domain = Literal["a", "b"]


class Translator(nn.Module, ABC):
    """A generator for both domains.

    Everything is called through `forward`, which is given the name of the work: DDP counts on it,
    and the casts of the precisions O2 and O3 happen there.
    """

    def forward(self, work: str, *inputs: Any) -> Any:
        """What the method `_work` returns for these inputs."""
        return getattr(self, f"_{work}")(*inputs)

    @abstractmethod
    def translate(
        self, images: Tensor, direction: Direction, style: Tensor | None = None
    ) -> Tensor:
        """Images [B, 3, H, W] from -1 to 1 of one domain as images of the other, of the same shape.

        `style` is None, an image [B, 3, H, W] or [1, 3, H, W] of the other domain whose style they
        take on, or seeds, int64 [B], of random styles. Height and width have to be multiples of
        `multiple`. Raises ModelError.
        """

    multiple: int
    """The sides of images are multiples of so many pixels."""

    def check_size(self, height: int, width: int) -> None:
        """Raise ModelError for images that the networks cannot halve."""
        if height % self.multiple or width % self.multiple:
            raise ModelError(
                f"images of {height} x {width} pixels: both sides have to be multiples of "
                f"{self.multiple}"
            )


class Downsampling(nn.Sequential):
    """Images [B, 3, H, W] to [B, width * 2**downs, H / 2**downs, W / 2**downs]: a 7 x 7
    convolution, halvings, residual blocks, with instance normalisation."""

    def __init__(self, width: int, downs: int, blocks: int) -> None:
        layers: list[nn.Module] = [ConvBlock(3, width, 7, norm="instance")]
        for level in range(downs):
            channels = width * 2**level
            layers.append(ConvBlock(channels, 2 * channels, 4, 2, norm="instance"))
        layers += [ResidualBlock(width * 2**downs) for _ in range(blocks)]
        super().__init__(*layers)


class Upsampling(nn.Sequential):
    """The way back to images from -1 to 1: doublings with layer normalisation, which keeps the
    means of channels, and a 7 x 7 convolution."""

    def __init__(self, width: int, downs: int) -> None:
        layers: list[nn.Module] = []
        for level in reversed(range(downs)):
            channels = width * 2**level
            layers += [Upsample(), ConvBlock(2 * channels, channels, 5, norm="layer")]
        layers.append(ConvBlock(width, 3, 7, activation_name="tanh"))
        super().__init__(*layers)


class DomainDiscriminators(nn.Module):
    """A `MultiScaleDiscriminator` for each domain."""

    def __init__(self, config: Translation) -> None:
        super().__init__()
        self.domains = nn.ModuleDict()
        for domain in ("a", "b"):
            self.domains[domain] = MultiScaleDiscriminator(
                3,
                scales=config.discriminator_scales,
                width=config.discriminator_width,
                layers=config.discriminator_layers,
                stride_one=False,
                norm="none",
                spectral=config.spectral,
            )
        initialize(self, "normal")

    def forward(
        self,
        a: Tensor,
        b: Tensor,
        fake_a: Tensor | None = None,
        fake_b: Tensor | None = None,
        *,
        penalize: bool = False,
    ) -> dict[str, Any]:
        """The logits of each scale, as `a` and `b`, and as `fake_a` and `fake_b` where generated
        images are given too, which are judged together with the real ones; with `penalize` also
        `r1`, the R1 penalty at the real images, summed over both domains."""
        found: dict[str, Any] = {}
        penalties = []
        for domain, images, fake in (("a", a, fake_a), ("b", b, fake_b)):
            discriminator = self.domains[domain]
            if fake is None:
                found[domain], _ = discriminator(images)
            else:
                (found[domain], _), (found[f"fake_{domain}"], _) = judge_together(
                    discriminator, images, fake
                )
            if penalize:
                penalties.append(r1_penalty(partial(_logits, discriminator), images))
        if penalize:
            found["r1"] = torch.stack(penalties).sum()
        return found


def _logits(discriminator: nn.Module, images: Tensor) -> list[Tensor]:
    logits: list[Tensor] = discriminator(images)[0]
    return logits
