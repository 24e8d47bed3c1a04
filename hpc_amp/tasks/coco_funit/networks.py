"""The style network of COCO-FUNIT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpc_amp.gan.layers import LinearBlock, pixel_mean
from hpc_amp.tasks.coco_funit.config import CocoFunitNetworks
from hpc_amp.tasks.funit.networks import StyleEncoder


class ContentConditionedStyle(StyleEncoder):
    """The style code of references for a content image: a vector of the content image's layout,
    times a vector of the references and the universal style bias, element by element."""

    def __init__(self, config: CocoFunitNetworks) -> None:
        super().__init__(config)
        size, hidden = config.style_size, config.mlp_width
        self.bias = nn.Parameter(torch.randn(config.bias_size))
        self.content_mlp = nn.Sequential(
            LinearBlock(config.layout_channels, hidden), nn.Linear(hidden, size)
        )
        self.style_mlp = nn.Sequential(
            LinearBlock(size + config.bias_size, hidden), nn.Linear(hidden, size)
        )

    def adapt(self, layout: Tensor, code: Tensor) -> Tensor:
        """The style code [B, `style_size`] for the content image with `layout` [B, C, h, w] of
        references with the mean code `code` [B, `style_size`]."""
        condition: Tensor = self.content_mlp(pixel_mean(layout))
        bias = self.bias.expand(len(layout), -1)
        style: Tensor = self.style_mlp(torch.cat([code, bias.to(code.dtype)], 1))
        return condition * style
