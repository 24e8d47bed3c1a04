"""Judging how frames follow each other, and regions of frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.discriminators import Judgement, PatchDiscriminator, halves_of
from hpc_amp.gan.video.warp import compose


class PartsDiscriminator(nn.Module):
    """A patch discriminator for each of `parts` parts of a video: windows of each time scale (Wang
    et al., 2018, vid2vid), or crops of each region. Of each part [N, inputs, H, W] to a
    `Judgement`, whose scales are the parts."""

    def __init__(
        self, inputs: int, *, parts: int, width: int, layers: int, spectral: SpectralName
    ) -> None:
        super().__init__()
        self.judges = nn.ModuleList(
            PatchDiscriminator(inputs, width=width, layers=layers, spectral=spectral)
            for _ in range(parts)
        )

    def forward(self, parts: Sequence[Tensor]) -> Judgement:
        """Logits and feature maps of each part."""
        judged = [judge(part) for judge, part in zip(self.judges, parts, strict=True)]
        return [logits for logits, _ in judged], [features for _, features in judged]


def judge_parts(
    discriminator: nn.Module, real: Sequence[Tensor], fake: Sequence[Tensor]
) -> tuple[Judgement, Judgement]:
    """What a `PartsDiscriminator` says of the parts of real and of generated videos, in one forward
    pass."""
    return halves_of(discriminator([torch.cat(pair) for pair in zip(real, fake, strict=True)]))


def time_windows(
    images: Tensor, flows: Tensor | None, *, frames: int, scales: int, unit: float
) -> list[Tensor]:
    """The windows that the temporal discriminator judges, of images [B, T, 3, H, W]: for each time
    scale [N, C, H, W], `frames` images one after another with, where there are `flows`
    [B, T - 1, 2, H, W], the flow from each to the one before in units of `unit` pixels.

    On scale i the images are `frames`^i frames apart, or as far as the sequence allows: so each
    scale has windows in every sequence of at least `frames` frames.
    """
    length = images.shape[1]
    found = []
    for scale in range(scales):
        stride = min(frames**scale, (length - 1) // (frames - 1))
        windows = []
        for last in range((frames - 1) * stride, length):
            at = range(last - (frames - 1) * stride, last + 1, stride)
            parts = [images[:, time].float() for time in at]
            if flows is not None:
                parts += [_flow_over(flows, time, stride) / unit for time in at[1:]]
            windows.append(torch.cat(parts, 1))
        # Samples first: so the parts of a batch are judged as in the whole.
        found.append(torch.stack(windows, 1).flatten(0, 1))
    return found


def _flow_over(flows: Tensor, time: int, stride: int) -> Tensor:
    """The flow [B, 2, H, W] from a frame to the one `stride` frames before."""
    flow = flows[:, time - 1].float()
    for before in range(time - 1, time - stride, -1):
        flow = compose(flow, flows[:, before - 1])
    return flow
