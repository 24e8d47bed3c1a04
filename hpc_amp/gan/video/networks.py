"""The generator of sequences: a network for the first frame, and one for those that follow.

Flow, mask, warped frames and the sum of both are fp32, also under autocast and with weights in half
precision (see `hpc_amp.gan.video.warp`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.layers import ConvBlock, ResidualBlock, Upsample, initialize, upsample
from hpc_amp.gan.norms import Spade
from hpc_amp.gan.spectral import advance, held, spectral_norm
from hpc_amp.gan.video.config import FlowNetwork, VideoNetworks
from hpc_amp.gan.video.points import Guidance
from hpc_amp.gan.video.warp import correlation, warp

WARPED_CHANNELS = 4
"""Those of a warped frame and its mask."""


class MaskedSpade(Spade):
    """`Spade` without normalisation, of a map whose last channel is a mask: it sees only the pixels
    where that is 1, by partial convolutions (Liu et al., 2018). Where none is near, nothing
    changes."""

    def __init__(self, channels: int, inputs: int, *, hidden: int) -> None:
        super().__init__(channels, inputs - 1, hidden=hidden, norm="none")

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The same shape as `x`."""
        condition = F.interpolate(condition, x.shape[2:], mode="nearest")
        first, activation = self.shared
        assert isinstance(first, nn.Conv2d)
        hidden, mask = partial_conv(first, condition[:, :-1], condition[:, -1:])
        hidden = activation(hidden)
        scale, shift = (partial_conv(conv, hidden, mask)[0] for conv in (self.scale, self.shift))
        return x * (1 + scale) + shift


def partial_conv(conv: nn.Conv2d, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution [B, C, H, W] of stride 1 that keeps the size, of the pixels where `mask`
    [B, 1, H, W] is 1, times all pixels of its window / those that count; 0 where none does. And the
    mask of where there is one. The result has the type that the convolution gives."""
    size, padding = conv.kernel_size, conv.padding
    assert not isinstance(padding, str)
    share = F.avg_pool2d(mask.float(), size, stride=1, padding=padding)
    near = share > 0
    weight = torch.where(near, 1 / share.clamp(min=1e-6), 0.0)
    seen = F.conv2d(x * mask, conv.weight, None, padding=padding)
    bias = 0.0 if conv.bias is None else conv.bias[:, None, None].to(seen.dtype)
    return (seen * weight.to(seen.dtype) + bias) * near, near.to(mask.dtype)


class MultiSpade(nn.Module):
    """Instance normalisation, whose scale and shift come from the label map, and then from each of
    the `guides`, images with so many channels; one of 0 channels is not seen. `masked`: of the last
    guide, only the pixels count where its last channel is 1."""

    def __init__(
        self,
        channels: int,
        condition: int,
        hidden: int,
        guides: Sequence[int] = (),
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.of_labels = Spade(channels, condition, hidden=hidden, norm="instance")
        self.of_guides = nn.ModuleDict()
        for place, guide in enumerate(guides):
            if masked and place == len(guides) - 1:
                self.of_guides[str(place)] = MaskedSpade(channels, guide, hidden=hidden)
            elif guide:
                self.of_guides[str(place)] = Spade(channels, guide, hidden=hidden, norm="none")

    def forward(self, x: Tensor, condition: Tensor, guides: Sequence[Tensor | None]) -> Tensor:
        """The same shape as `x`. A guide of None changes nothing; those that this norm does not
        know are left out."""
        x = self.of_labels(x, condition)
        for place, guide in enumerate(guides):
            if guide is not None and str(place) in self.of_guides:
                x = self.of_guides[str(place)](x, guide)
        return x


class FrameBlock(nn.Module):
    """A residual block of `MultiSpade`: x [B, inputs, H, W] to [B, outputs, H, W]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition: int,
        networks: VideoNetworks,
        guides: Sequence[int] = (),
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        middle = min(inputs, outputs)

        def norm(channels: int) -> MultiSpade:
            return MultiSpade(channels, condition, networks.hidden, guides, masked=masked)

        self.norms = nn.ModuleList([norm(inputs), norm(middle)])
        self.convs = nn.ModuleList(
            [
                _conv(inputs, middle, 3, networks.spectral),
                _conv(middle, outputs, 3, networks.spectral),
            ]
        )
        self.shortcut_norm: nn.Module | None = None
        if inputs != outputs:
            self.shortcut_norm = norm(inputs)
            self.shortcut = _conv(inputs, outputs, 1, networks.spectral)

    def forward(self, x: Tensor, condition: Tensor, guides: Sequence[Tensor | None]) -> Tensor:
        """[B, outputs, H, W]."""
        out = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            out = conv(F.leaky_relu(norm(out, condition, guides), 0.2))
        if self.shortcut_norm is not None:
            x = self.shortcut(self.shortcut_norm(x, condition, guides))
        return x + out


class FlowEstimator(nn.Module):
    """Earlier frames and all label maps [B, inputs, H, W] to the flow [B, 2, H, W] in pixels and
    the mask [B, 1, H, W] from 0 to 1, both fp32."""

    def __init__(self, inputs: int, config: FlowNetwork, spectral: SpectralName) -> None:
        super().__init__()
        self.scale = config.scale
        block = partial(ConvBlock, norm=config.norm, activation_name="leaky", spectral=spectral)
        widths = [config.width * 2**level for level in range(config.halvings + 1)]
        layers: list[nn.Module] = [block(inputs, widths[0], 7)]
        layers += [block(before, after, stride=2) for before, after in itertools.pairwise(widths)]
        layers += [ResidualBlock(widths[-1], spectral=spectral) for _ in range(config.blocks)]
        for before, after in itertools.pairwise(reversed(widths)):
            layers += [Upsample(), block(before, after)]
        self.body = nn.Sequential(*layers)
        self.flow = nn.Conv2d(widths[0], 2, 3, padding=1)
        self.mask = nn.Conv2d(widths[0], 1, 3, padding=1)

    def settle(self) -> None:
        """Draw weights that keep the size of values from layer to layer without normalisation, and
        begin with small flows."""
        initialize(self, "kaiming")
        with torch.no_grad():
            self.flow.weight.mul_(0.1)
            self.mask.weight.mul_(0.1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Flow, and mask."""
        features = self.body(seen)
        return self.scale * self.flow(features).float(), self.mask(features).float().sigmoid()


class SequenceGenerator(nn.Module):
    """Conditions [B, T, `condition`, H, W] to frames [B, T, 3, H, W] from -1 to 1.

    One forward pass makes the whole sequence, so that the ranks exchange gradients once in a
    backward pass. Each frame is made from its condition and `previous` earlier frames with theirs:
    the newest is warped by an estimated flow, and a mask says where the frame is a new image
    instead. At the first frame there is none; at the second, the first one stands for all earlier
    ones.
    """

    def __init__(self, condition: int, networks: VideoNetworks) -> None:
        super().__init__()
        self.networks = networks
        stages, spectral = networks.stages, networks.spectral
        channels = [min(networks.width * 2**level, networks.most) for level in range(stages + 1)]
        seen = networks.previous * (3 + condition) + condition
        block = partial(ConvBlock, norm="instance", activation_name="leaky", spectral=spectral)
        self.first = nn.Conv2d(condition, channels[-1], 3, padding=1)
        self.encoder = nn.Sequential(
            block(seen, channels[0]),
            *(block(before, after, stride=2) for before, after in itertools.pairwise(channels)),
        )
        fits = (2 * networks.flow.correlation + 1) ** 2 if networks.flow.correlation else 0
        self.flow = FlowEstimator(seen + fits, networks.flow, spectral)
        self.head = self.build_block(channels[-1], channels[-1], condition, warped=False)
        downwards = list(itertools.pairwise(reversed(channels)))
        self.up = nn.ModuleList(
            self.build_block(
                before,
                after,
                condition,
                warped=place >= len(downwards) - networks.warped_stages,
            )
            for place, (before, after) in enumerate(downwards)
        )
        self.last = nn.Conv2d(channels[0], 3, 3, padding=1)
        initialize(self, "xavier")
        if networks.flow.norm == "none":
            self.flow.settle()

    def build_block(self, inputs: int, outputs: int, condition: int, *, warped: bool) -> FrameBlock:
        """A block, which sees the warped frame before or not."""
        guides = (WARPED_CHANNELS,) if warped else ()
        return FrameBlock(inputs, outputs, condition, self.networks, guides)

    def forward(
        self,
        condition: Tensor,
        images_before: Tensor | None = None,
        conditions_before: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Frames, the flow [B, N, 2, H, W] in pixels from each frame that has one before it to that
        one, and its mask [B, N, 1, H, W]; all fp32. With the `previous` frames and conditions
        before, all frames have one."""
        return self.make(condition, images_before, conditions_before)

    def make(
        self,
        condition: Tensor,
        images_before: Tensor | None,
        conditions_before: Tensor | None,
        *,
        first: Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` returns. `first` [B, 3, H, W] is the first frame, if another network made
        it. Each further frame sees the image of `guidance`, too, which no gradients go through."""
        repeats = self.networks.checkpointing and torch.is_grad_enabled()
        if repeats:
            # Weights are computed again in the backward pass, and have to be the same.
            advance(self)
        with held(self) if repeats else parametrize.cached():
            frames: list[Tensor] = []
            flows: list[Tensor] = []
            masks: list[Tensor] = []
            for time, now in enumerate(condition.unbind(1)):
                guide = None if guidance is None else guidance.show()
                if images_before is None or conditions_before is None:
                    frame = first
                    if frame is None:
                        frame = self._run(self._first_frame, repeats, now)
                    images_before = frame[:, None].expand(-1, self.networks.previous, -1, -1, -1)
                    conditions_before = now[:, None].expand(-1, images_before.shape[1], -1, -1, -1)
                else:
                    if time % self.networks.backprop_frames == 0:
                        images_before = images_before.detach()
                    frame, flow, mask = self._run(
                        self._next_frame, repeats, now, images_before, conditions_before, guide
                    )
                    flows.append(flow)
                    masks.append(mask)
                    images_before = torch.cat((images_before[:, 1:], frame[:, None]), 1)
                    conditions_before = torch.cat((conditions_before[:, 1:], now[:, None]), 1)
                frames.append(frame)
                if guidance is not None:
                    guidance.add(frame)
        made = torch.stack(frames, 1)
        if not flows:
            return made, made[:, :0, :2], made[:, :0, :1]
        return made, torch.stack(flows, 1), torch.stack(masks, 1)

    def _run(self, make: Callable[..., Any], repeats: bool, *inputs: Tensor | None) -> Any:
        """What `make` returns; with `repeats`, its forward pass is repeated in the backward pass,
        and only its inputs and results are kept."""
        if not repeats:
            return make(*inputs)
        return checkpoint(
            make,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,  # there is nothing random in it
            context_fn=lambda: (contextlib.nullcontext(), held(self)),
        )

    def _first_frame(self, now: Tensor) -> Tensor:
        size = [side // 2**self.networks.stages for side in now.shape[2:]]
        return self._decode(self.first(F.interpolate(now, size, mode="nearest")), now)

    def _next_frame(
        self,
        now: Tensor,
        images_before: Tensor,
        conditions_before: Tensor,
        guide: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Conditions are in half precision with O2 and O3; frames never are.
        seen = torch.cat(
            (images_before.flatten(1, 2).to(now.dtype), conditions_before.flatten(1, 2), now), 1
        )
        evidence = seen
        if radius := self.networks.flow.correlation:
            fits = correlation(now, conditions_before[:, -1], radius)
            evidence = torch.cat((seen, fits), 1)
        flow, mask = self.flow(evidence)
        warped = warp(images_before[:, -1], flow)
        shown = torch.cat((warped, mask), 1).to(now.dtype)
        guides = (shown, None if guide is None else guide.to(now.dtype))
        drawn = self._decode(self.encoder(seen), now, guides)
        return self.combine(drawn, warped, mask), flow, mask

    def combine(self, drawn: Tensor, warped: Tensor, mask: Tensor) -> Tensor:
        """A frame, of what the blocks drew and of the warped frame before."""
        return mask * drawn + (1 - mask) * warped

    def _decode(self, x: Tensor, condition: Tensor, guides: Sequence[Tensor | None] = ()) -> Tensor:
        x = self.head(x, condition, guides)
        for block in self.up:
            x = block(upsample(x), condition, guides)
        return torch.tanh(self.last(F.leaky_relu(x, 0.2)).float())


def _conv(inputs: int, outputs: int, kernel: int, spectral: SpectralName) -> nn.Module:
    return spectral_norm(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), spectral)
