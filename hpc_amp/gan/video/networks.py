"""The generator of sequences: a network for the first frame, and one for those that follow.

Flow, mask, warped frames and the sum of both are fp32, also under autocast and with weights in half
precision (see `hpc_amp.gan.video.warp`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

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
WINDOWS = (5, 11)
"""Sides of the squares, in pixels, over which it counts how well label maps fit when moved."""
CERTAINTY = 10.0
"""What a move is ahead of another one, before the softmax, where all of a square fits."""


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
    the `guides`, images with so many channels; one of 0 channels is not seen. `of_labels` is the
    part of the label map, where it is not a `Spade`. `masked`: of the last guide, only the pixels
    count where its last channel is 1."""

    def __init__(
        self,
        channels: int,
        condition: int,
        hidden: int,
        guides: Sequence[int] = (),
        of_labels: nn.Module | None = None,
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        if of_labels is None:
            of_labels = Spade(channels, condition, hidden=hidden, norm="instance")
        self.of_labels = of_labels
        self.of_guides = nn.ModuleDict()
        for place, guide in enumerate(guides):
            if masked and place == len(guides) - 1:
                self.of_guides[str(place)] = MaskedSpade(channels, guide, hidden=hidden)
            elif guide:
                self.of_guides[str(place)] = Spade(channels, guide, hidden=hidden, norm="none")

    def forward(self, x: Tensor, condition: Any, guides: Sequence[Tensor | None]) -> Tensor:
        """The same shape as `x`. `condition` is what `of_labels` takes, for a `Spade` the label
        map. A guide of None changes nothing; those that this norm does not know are left out."""
        x = self.of_labels(x, condition)
        for place, guide in enumerate(guides):
            if guide is not None and str(place) in self.of_guides:
                x = self.of_guides[str(place)](x, guide)
        return x


class FrameBlock(nn.Module):
    """A residual block of `MultiSpade`: x [B, inputs, H, W] to [B, outputs, H, W]. `of_labels`
    makes the part of the label map for a number of channels, where it is not a `Spade`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition: int,
        networks: VideoNetworks,
        guides: Sequence[int] = (),
        of_labels: Callable[[int], nn.Module] | None = None,
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        middle = min(inputs, outputs)

        def norm(channels: int) -> MultiSpade:
            own = None if of_labels is None else of_labels(channels)
            return MultiSpade(channels, condition, networks.hidden, guides, own, masked=masked)

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

    def forward(self, x: Tensor, condition: Any, guides: Sequence[Tensor | None]) -> Tensor:
        """[B, outputs, H, W]."""
        out = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            out = conv(F.leaky_relu(norm(out, condition, guides), 0.2))
        if self.shortcut_norm is not None:
            x = self.shortcut(self.shortcut_norm(x, condition, guides))
        return x + out


class FlowEstimator(nn.Module):
    """Earlier frames and all label maps [B, inputs, H, W] to the flow [B, 2, H, W] in pixels and
    the mask [B, 1, H, W] from 0 to 1, both fp32.

    With `config.correlation`, it sees that of the label maps, too. The flow is then a mean of all
    moves within that radius, besides what the network adds to it. Their weights come from the
    network and from how well the label maps around a pixel fit when moved: so a first guess is
    there before anything is learned.
    """

    moves: Tensor
    """(x, y) [N, 2]: the moves whose mean the flow begins with."""

    def __init__(self, inputs: int, config: FlowNetwork, spectral: SpectralName) -> None:
        super().__init__()
        self.scale, self.radius = config.scale, config.correlation
        moves = _moves(self.radius) if self.radius else torch.zeros(0, 2)
        self.register_buffer("moves", moves, persistent=False)
        inputs += len(moves)
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
        self.choice = nn.Conv2d(widths[0], len(moves), 3, padding=1) if len(moves) else None

    def settle(self) -> None:
        """Draw weights that keep the size of values from layer to layer without normalisation, and
        begin with small flows."""
        initialize(self, "kaiming")
        with torch.no_grad():
            for head in (self.flow, self.mask, self.choice):
                if head is not None:
                    head.weight.mul_(0.1)

    def forward(self, seen: Tensor, now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Flow, and mask. `now` and `before` are the label maps of both frames, [B, C, H, W]."""
        if self.choice is None:
            features = self.body(seen)
            return self.scale * self.flow(features).float(), self.mask(features).float().sigmoid()
        fits = correlation(now, before, self.radius)
        features = self.body(torch.cat((seen, fits), 1))
        around = sum(
            F.avg_pool2d(fits.float(), side, 1, side // 2, count_include_pad=False)
            for side in WINDOWS
        )
        weights = (self.choice(features).float() + CERTAINTY * around).softmax(1)
        moves = self.moves.float()[:, :, None, None]
        mean = torch.stack([(weights * moves[:, axis]).sum(1) for axis in (0, 1)], 1)
        flow = self.scale * self.flow(features).float() + mean
        return flow, self.mask(features).float().sigmoid()


class SequenceGenerator(nn.Module):
    """Conditions [B, T, `condition`, H, W] to frames [B, T, 3, H, W] from -1 to 1.

    One forward pass makes the whole sequence, so that the ranks exchange gradients once in a
    backward pass. Each frame is made from its condition and `previous` earlier frames with theirs:
    the newest is warped by an estimated flow, and a mask says where the frame is a new image
    instead. At the first frame there is none; at the second, the first one stands for all earlier
    ones.
    """

    returns: ClassVar[tuple[str, ...]] = ("frames", "flows", "masks")
    """What `forward` returns, of what `_first_frame` and `_next_frame` make."""

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
        self.flow = FlowEstimator(seen, networks.flow, spectral)
        self.head = self.build_block(channels[-1], channels[-1], condition, stages)
        self.up = nn.ModuleList(
            self.build_block(before, after, condition, stages - 1 - place)
            for place, (before, after) in enumerate(itertools.pairwise(reversed(channels)))
        )
        self.last = nn.Conv2d(channels[0], 3, 3, padding=1)
        initialize(self, "xavier")
        if networks.flow.norm == "none":
            self.flow.settle()

    def build_block(self, inputs: int, outputs: int, condition: int, followers: int) -> FrameBlock:
        """The block that so many follow."""
        guides = (WARPED_CHANNELS,) if self.sees_warped(followers) else ()
        return FrameBlock(inputs, outputs, condition, self.networks, guides)

    def sees_warped(self, followers: int) -> bool:
        """Whether the block that so many follow sees the warped frame before."""
        return followers < min(self.networks.warped_stages, self.networks.stages)

    def forward(
        self,
        condition: Tensor,
        images_before: Tensor | None = None,
        conditions_before: Tensor | None = None,
        *shown: Tensor,
    ) -> tuple[Tensor, ...]:
        """Frames, the flow [B, N, 2, H, W] in pixels from each frame that has one before it to that
        one, and its mask [B, N, 1, H, W]; all fp32. With the `previous` frames and conditions
        before, all frames have one. `shown` is what the frames are made from besides, if a subclass
        knows what to do with it."""
        return self.make(condition, images_before, conditions_before, shown)

    def make(
        self,
        condition: Tensor,
        images_before: Tensor | None,
        conditions_before: Tensor | None,
        shown: tuple[Tensor, ...] = (),
        *,
        first: Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> tuple[Tensor, ...]:
        """What `forward` returns. `first` [B, 3, H, W] is the first frame, if another network made
        it. Each further frame sees the image of `guidance`, too, which no gradients go through."""
        repeats = self.networks.checkpointing and torch.is_grad_enabled()
        if repeats:
            # Weights are computed again in the backward pass, and have to be the same.
            advance(self)
        with held(self) if repeats else parametrize.cached():
            context = self._context(*shown)
            made: dict[str, list[Tensor]] = {}
            for time, now in enumerate(condition.unbind(1)):
                guides = () if guidance is None else (guidance.show(),)
                if images_before is None or conditions_before is None:
                    if first is None:
                        found = self._run(self._first_frame, repeats, now, *context)
                    else:
                        found = {"frames": first}
                    frame = found["frames"]
                    images_before = frame[:, None].expand(-1, self.networks.previous, -1, -1, -1)
                    conditions_before = now[:, None].expand(-1, images_before.shape[1], -1, -1, -1)
                else:
                    if time % self.networks.backprop_frames == 0:
                        images_before = images_before.detach()
                    before = images_before, conditions_before
                    found = self._run(self._next_frame, repeats, now, *before, *guides, *context)
                    frame = found["frames"]
                    images_before = torch.cat((images_before[:, 1:], frame[:, None]), 1)
                    conditions_before = torch.cat((conditions_before[:, 1:], now[:, None]), 1)
                for name, value in found.items():
                    made.setdefault(name, []).append(value)
                if guidance is not None:
                    guidance.add(frame)
        outputs = {name: torch.stack(parts, 1) for name, parts in made.items()}
        frames = outputs["frames"]
        none = {"flows": frames[:, :0, :2], "masks": frames[:, :0, :1]}  # of a single frame
        return tuple({**none, **outputs}[name] for name in self.returns)

    def _context(self, *shown: Tensor) -> tuple[Tensor, ...]:
        """What all frames of a sequence are made from: further arguments of `_first_frame` and
        `_next_frame`."""
        return shown

    def _run(
        self, make: Callable[..., dict[str, Tensor]], repeats: bool, *inputs: Tensor
    ) -> dict[str, Tensor]:
        """What `make` returns; with `repeats`, its forward pass is repeated in the backward pass,
        and only its inputs and results are kept."""
        if not repeats:
            return make(*inputs)
        made: dict[str, Tensor] = checkpoint(
            make,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,  # there is nothing random in it
            context_fn=lambda: (contextlib.nullcontext(), held(self)),
        )
        return made

    def _first_frame(self, now: Tensor, *context: Tensor) -> dict[str, Tensor]:
        return {"frames": self._decode(self._begin(now), now)}

    def _begin(self, now: Tensor) -> Tensor:
        """What the first block sees where there is no frame before."""
        size = [side // 2**self.networks.stages for side in now.shape[2:]]
        features: Tensor = self.first(F.interpolate(now, size, mode="nearest"))
        return features

    def _next_frame(
        self, now: Tensor, images_before: Tensor, conditions_before: Tensor, *guides: Tensor
    ) -> dict[str, Tensor]:
        seen, warped, flow, mask = self._look_back(now, images_before, conditions_before)
        others = (each.to(now.dtype) for each in guides)
        shown = guide(warped, mask, now.dtype), *others
        drawn = self._decode(self.encoder(seen), now, shown)
        return {"frames": self.combine(drawn, warped, mask), "flows": flow, "masks": mask}

    def _look_back(
        self, now: Tensor, images_before: Tensor, conditions_before: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All that is known as one image, the warped frame before, its flow and its mask."""
        # Conditions are in half precision with O2 and O3; frames never are.
        seen = torch.cat(
            (images_before.flatten(1, 2).to(now.dtype), conditions_before.flatten(1, 2), now), 1
        )
        flow, mask = self.flow(seen, now, conditions_before[:, -1])
        return seen, warp(images_before[:, -1], flow), flow, mask

    def combine(self, drawn: Tensor, warped: Tensor, mask: Tensor) -> Tensor:
        """A frame, of what the blocks drew and of the warped frame before."""
        return mask * drawn + (1 - mask) * warped

    def _decode(self, x: Tensor, condition: Any, guides: Sequence[Tensor | None] = ()) -> Tensor:
        x = self.head(x, condition, guides)
        for block in self.up:
            x = block(upsample(x), condition, guides)
        return self.draw(F.leaky_relu(x, 0.2), guides)

    def draw(self, features: Tensor, guides: Sequence[Tensor | None]) -> Tensor:
        """The image fp32 [B, 3, H, W] from -1 to 1 of the last block's features."""
        return torch.tanh(self.last(features).float())


def guide(warped: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A warped frame [B, 3, H, W] and its mask as a guide of `MultiSpade`."""
    return torch.cat((warped, mask), 1).to(dtype)


def _conv(inputs: int, outputs: int, kernel: int, spectral: SpectralName) -> nn.Module:
    return spectral_norm(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), spectral)


def _moves(radius: int) -> Tensor:
    """All moves by up to `radius` pixels, in the order of `correlation`: (x, y) [N, 2]."""
    side = torch.arange(-radius, radius + 1.0)
    down, right = torch.meshgrid(side, side, indexing="ij")
    return torch.stack((right, down), 2).flatten(0, 1)
