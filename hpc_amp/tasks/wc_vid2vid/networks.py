"""The networks of world-consistent vid2vid: a generator that sees the colours of points, and one
for first frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from hpc_amp.gan.layers import initialize
from hpc_amp.gan.video.networks import WARPED_CHANNELS, FrameBlock, SequenceGenerator
from hpc_amp.gan.video.points import GUIDANCE_CHANNELS, Guidance, PointColours
from hpc_amp.tasks.spade.config import SpadeNetworks
from hpc_amp.tasks.spade.networks import SpadeGenerator
from hpc_amp.tasks.wc_vid2vid.config import FirstFrame, GuidedNetworks

Network = TypeVar("Network", bound="FirstFrameGenerator")
KEPT = 2.0
"""Where the weight of known colours begins, before the sigmoid: 0.88 of them is kept."""


class GuidedGenerator(SequenceGenerator):
    """Conditions [B, T, `condition`, H, W] and points int64 [B, T, H, W] to frames [B, T, 3, H, W]
    from -1 to 1.

    All blocks see the colours in which the points of a frame were shown first. They are those of
    generated frames, and no gradients go through them.
    """

    networks: GuidedNetworks

    def __init__(self, condition: int, networks: GuidedNetworks) -> None:
        super().__init__(condition, networks)
        self.kept: nn.Conv2d | None = None
        if networks.keep_colours:
            self.kept = nn.Conv2d(self.last.in_channels, 1, 3, padding=1)
            initialize(self.kept, "xavier")
        if networks.first_frame is not None:
            del self.first  # only its own first frames need it, and DDP waits for each parameter

    def build_block(self, inputs: int, outputs: int, condition: int, followers: int) -> FrameBlock:
        """The block that so many follow. It sees the colours of points."""
        guides = (WARPED_CHANNELS if self.sees_warped(followers) else 0, GUIDANCE_CHANNELS)
        networks = self.networks
        return FrameBlock(inputs, outputs, condition, networks, guides, masked=networks.partial)

    def draw(self, features: Tensor, guides: Sequence[Tensor | None]) -> Tensor:
        """The image of the last block's features, with the colours of points where the network
        keeps them."""
        drawn = super().draw(features, guides)
        if self.kept is None or not guides:
            return drawn
        colours = guides[-1]
        assert colours is not None
        known, where = colours[:, :3].float(), colours[:, 3:].float()
        weight: Tensor = where * (self.kept(features).float() + KEPT).sigmoid()
        return weight * known + (1 - weight) * drawn

    def combine(self, drawn: Tensor, warped: Tensor, mask: Tensor) -> Tensor:
        """What the blocks drew: they have seen the warped frame and its mask."""
        return drawn

    def forward(  # type: ignore[override]
        self,
        condition: Tensor,
        points: Tensor,
        images_before: Tensor | None = None,
        conditions_before: Tensor | None = None,
        *,
        first: Tensor | None = None,
        colours: Sequence[PointColours] | None = None,
    ) -> tuple[Tensor, ...]:
        """What a `SequenceGenerator` returns, and the guidance images [B, T, 4, H, W]: colours of
        points and their mask.

        `first` [B, 3, H, W] is the first frame, if another network made it. `colours`, one for each
        sequence, are those of frames before, and get those of these frames.
        """
        guidance = Guidance(points, colours)
        made = self.make(
            condition, images_before, conditions_before, first=first, guidance=guidance
        )
        return (*made, torch.stack(guidance.shown, 1))


class FirstFrameGenerator(SpadeGenerator):
    """The network of first frames. It is not trained, and always as in an evaluation."""

    def __init__(self, condition: int, size: tuple[int, int], config: FirstFrame) -> None:
        networks = SpadeNetworks(
            width=config.width,
            stages=config.stages,
            hidden=config.hidden,
            norm=config.norm,
            spectral=config.spectral,
        )
        super().__init__(condition, size, networks)
        self.requires_grad_(False).eval()

    def train(self: Network, mode: bool = True) -> Network:
        """Changes nothing: also in a training, it is as in an evaluation."""
        return SpadeGenerator.train(self, False)
