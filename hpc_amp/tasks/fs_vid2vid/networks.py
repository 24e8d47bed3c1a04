"""The generator of few-shot vid2vid: that of sequences, with weights and features that come from
reference images.

Flows, masks, warped images, the softmax of the attention and the mean that makes the code are fp32,
also under autocast and with weights in half precision.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.layers import ConvBlock, LinearBlock, initialize, pixel_mean
from hpc_amp.gan.norms import InstanceNorm, Spade
from hpc_amp.gan.video.networks import (
    WARPED_CHANNELS,
    FlowEstimator,
    FrameBlock,
    SequenceGenerator,
    guide,
)
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.fs_vid2vid.config import FsVid2vidNetworks, ReferenceNetwork

SHARPNESS = 10.0
"""How much the attention prefers places that fit, at first: a factor of angles' cosines."""


class AdaptiveConv(nn.Module):
    """A convolution whose weights depend on the sample: those of an ordinary one, plus a product of
    matrices, [outputs, `rank`] computed from the code of the sample and [`rank`, inputs * kernel^2]
    learned. The bias, too, has such a part.

    The product is never made: `x` goes through a convolution to `rank` channels, and these are
    mixed for each sample.
    """

    def __init__(self, inputs: int, outputs: int, config: ReferenceNetwork) -> None:
        super().__init__()
        self.common = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.learned = nn.Conv2d(inputs, config.rank, 3, padding=1, bias=False)
        self.computed = nn.Linear(config.code, outputs * (config.rank + 1))

    def settle(self) -> None:
        """Draw the weights of the product so that the code matters from the start."""
        for part in (self.learned, self.computed):
            initialize(part, "kaiming")
        with torch.no_grad():
            self.computed.weight.mul_(0.1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        """x [B, inputs, H, W] and code [B, C] to [B, outputs, H, W]."""
        computed = self.computed(code).unflatten(1, (self.common.out_channels, -1))
        weight, bias = computed[:, :, 1:], computed[:, :, :1]
        own = torch.bmm(weight, self.learned(x).flatten(2)) + bias
        out: Tensor = self.common(x) + own.unflatten(2, x.shape[2:])
        return out


class AdaptiveSpade(nn.Module):
    """SPADE with instance normalisation, whose convolutions depend on the sample: x
    [B, channels, H, W], with a map and a code, to [B, channels, H, W]."""

    def __init__(self, channels: int, inputs: int, hidden: int, config: ReferenceNetwork) -> None:
        super().__init__()
        self.norm = InstanceNorm()
        self.shared = AdaptiveConv(inputs, hidden, config)
        self.scale = AdaptiveConv(hidden, channels, config)
        self.shift = AdaptiveConv(hidden, channels, config)

    def forward(self, x: Tensor, condition: tuple[Tensor, Tensor]) -> Tensor:
        """Normalised `x`, times 1 + scale, plus shift."""
        shown, code = condition
        shown = F.interpolate(shown, x.shape[2:], mode="nearest")
        hidden = torch.relu(self.shared(shown, code))
        out: Tensor = self.norm(x) * (1 + self.scale(hidden, code)) + self.shift(hidden, code)
        return out


class _CommonSpade(nn.Module):
    """SPADE with instance normalisation that leaves the code out."""

    def __init__(self, channels: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.spade = Spade(channels, inputs, hidden=hidden, norm="instance")

    def forward(self, x: Tensor, condition: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = self.spade(x, condition[0])
        return out


class ReferenceReader(nn.Module):
    """Features of references, and the attention that brings them to the places of a frame."""

    def __init__(self, condition: int, config: ReferenceNetwork) -> None:
        super().__init__()
        widths = [config.width * 2**level for level in range(config.halvings + 1)]
        self.features = _encoder(3 + condition, widths)
        self.places = nn.Sequential(_encoder(condition, widths), nn.Conv2d(widths[-1], 64, 1))
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS))
        initialize(self, "kaiming")

    def read(self, references: Tensor, conditions: Tensor) -> tuple[Tensor, Tensor]:
        """References [B, K, 3, H, W] with their conditions [B, K, C, H, W] to features
        [B, K, channels, h, w] and what says where they fit, [B, K, 64, h, w]."""
        both = torch.cat((references.to(conditions.dtype), conditions), 2).flatten(0, 1)
        features = self.features(both).unflatten(0, references.shape[:2])
        return features, self.describe(conditions.flatten(0, 1)).unflatten(0, references.shape[:2])

    def describe(self, condition: Tensor) -> Tensor:
        """Conditions [B, C, H, W] to vectors of the length 1 at each place, [B, 64, h, w]. Frames
        and references have the same network, so that equal places fit from the start."""
        found: Tensor = self.places(condition)
        return F.normalize(found.float(), dim=1, eps=1e-6).to(found.dtype)

    def forward(self, condition: Tensor, features: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The features [B, channels, h, w] of references that fit each place of a frame with
        `condition` [B, C, H, W], and the share [B, K] that each reference has in them, in fp32."""
        wanted = self.describe(condition)
        query = wanted.flatten(2).transpose(1, 2)
        fits = torch.bmm(query, keys.transpose(1, 2).flatten(2))
        weights = (self.sharpness.float() * fits.float()).softmax(2)
        values = features.transpose(1, 2).flatten(2).transpose(1, 2)
        found = torch.bmm(weights.to(values.dtype), values).transpose(1, 2)
        share = weights.unflatten(2, (features.shape[1], -1)).sum(3).mean(1)
        return found.unflatten(2, wanted.shape[2:]), share


class ReferenceGenerator(SequenceGenerator):
    """Conditions [B, T, `condition`, H, W] and references to frames [B, T, 3, H, W] from -1 to 1.

    As a `SequenceGenerator`, and from references: their features, at the places where they fit, are
    seen by all normalisations, since what all places of a frame have in common does not come
    through them otherwise; the mean of these features is the code of their weights; and the
    reference that fits best is warped by an estimated flow, which the last blocks see.
    """

    networks: FsVid2vidNetworks
    returns: ClassVar[tuple[str, ...]] = (
        *SequenceGenerator.returns,
        "reference_flows",
        "reference_masks",
        "chosen",
    )

    def __init__(self, condition: int, networks: FsVid2vidNetworks) -> None:
        super().__init__(condition, networks)
        config = networks.references
        self.reader = ReferenceReader(condition, config)
        self.code = nn.Sequential(
            LinearBlock(config.channels, config.code, activation_name="leaky"),
            LinearBlock(config.code, config.code, activation_name="leaky"),
        )
        self.reference_flow = FlowEstimator(
            3 + 2 * condition, networks.reference_flow, networks.spectral
        )
        initialize(self.code, "kaiming")
        for module in self.modules():
            if isinstance(module, AdaptiveConv):
                module.settle()
        if networks.reference_flow.norm == "none":
            self.reference_flow.settle()
        else:
            initialize(self.reference_flow, "xavier")

    def build_block(self, inputs: int, outputs: int, condition: int, followers: int) -> FrameBlock:
        networks = self.networks

        def of_labels(channels: int) -> nn.Module:
            if followers < networks.references.blocks:
                return AdaptiveSpade(channels, condition, networks.hidden, networks.references)
            return _CommonSpade(channels, condition, networks.hidden)

        guides = [networks.references.channels]
        if self.sees_warped(followers):
            guides += [WARPED_CHANNELS] * 2
        return FrameBlock(inputs, outputs, condition, networks, guides, of_labels)

    def _context(self, *shown: Tensor) -> tuple[Tensor, ...]:
        references, conditions = shown
        return references, conditions, *self.reader.read(references, conditions)

    def _first_frame(self, now: Tensor, *context: Tensor) -> dict[str, Tensor]:
        code, guides, found = self._refer(now, *context)
        drawn = self._decode(self._begin(now), (now, code), guides)
        return {"frames": drawn, **found}

    def _next_frame(
        self, now: Tensor, images_before: Tensor, conditions_before: Tensor, *context: Tensor
    ) -> dict[str, Tensor]:
        code, guides, found = self._refer(now, *context)
        seen, before, flow, mask = self._look_back(now, images_before, conditions_before)
        guides = (*guides, guide(before, mask, now.dtype))
        drawn = self._decode(self.encoder(seen), (now, code), guides)
        frame = self.combine(drawn, before, mask)
        return {"frames": frame, "flows": flow, "masks": mask, **found}

    def _refer(
        self, now: Tensor, references: Tensor, conditions: Tensor, features: Tensor, keys: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """What a frame gets from references: the code, the fitting features and the warped
        reference as guides, and the flow and mask of that with the number of the reference."""
        fitting, share = self.reader(now, features, keys)
        chosen = share.argmax(1)
        samples = torch.arange(len(chosen), device=chosen.device)
        reference, condition = references[samples, chosen], conditions[samples, chosen]
        evidence = torch.cat((reference.to(now.dtype), condition, now), 1)
        flow, mask = self.reference_flow(evidence, now, condition)
        found = {"reference_flows": flow, "reference_masks": mask, "chosen": chosen}
        warped = guide(warp(reference, flow), mask, now.dtype)
        return self.code(pixel_mean(fitting)), (fitting, warped), found


def _encoder(inputs: int, widths: list[int]) -> nn.Sequential:
    return nn.Sequential(
        ConvBlock(inputs, widths[0], activation_name="leaky"),
        *(
            ConvBlock(before, after, stride=2, activation_name="leaky")
            for before, after in itertools.pairwise(widths)
        ),
    )
