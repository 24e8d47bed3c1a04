"""The style network of COCO-FUNIT."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpc_amp.gan.layers import LinearBlock, pixel_mean
from hpc_amp.tasks.coco_funit.config import CocoFunitNetworks
from hpc_amp.tasks.funit.networks import PooledEncoder, mean_codes


class ContentConditionedStyle(nn.Module):
    """The style code of references for a content image: a vector of the content image's layout,
    times a vector of the references and the universal style bias, element by element."""

    def __init__(self, config: CocoFunitNetworks) -> None:
        super().__init__()
        size, hidden = config.style_size, config.mlp_width
        self.encoder = PooledEncoder(config, size)
        self.bias = nn.Parameter(torch.randn(config.bias_size))
        self.content_mlp = nn.Sequential(
            LinearBlock(config.layout_channels, hidden), nn.Linear(hidden, size)
        )
        self.style_mlp = nn.Sequential(
            LinearBlock(size + config.bias_size, hidden), nn.Linear(hidden, size)
        )

    def forward(self, layout: Tensor, references: Sequence[Tensor]) -> list[Tensor]:
        """For each of `references`, which are [B, K, 3, H, W] with any K each, the code of its K
        images for the content image with `layout` [B, C, h, w]: [B, `style_size`]."""
        condition = self.content_mlp(pixel_mean(layout))
        bias = self.bias.expand(len(layout), -1)
        return [
            condition * self.style_mlp(torch.cat([code, bias.to(code.dtype)], 1))
            for code in mean_codes(self.encoder, references)
        ]
