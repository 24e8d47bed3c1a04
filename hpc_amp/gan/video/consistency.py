"""Losses and metrics of flows, and of how well frames follow each other. All in fp32 or fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.gan.losses import l1
from hpc_amp.gan.video.points import visible
from hpc_amp.gan.video.warp import warp


def flow_loss(found: Tensor, flows: Tensor, known: Tensor) -> Tensor:
    """The L1 distance of flows [B, T - 1, 2, H, W] in pixels, 0 where the reference is not known;
    the mean over all pixels, so that parts of a batch add up: a scalar in fp32."""
    weight = known[:, :, None].float()
    return l1(found.float() * weight, flows.float() * weight)


def warp_loss(flows: Tensor, images: Tensor) -> Tensor:
    """The L1 distance of frames [B, T, 3, H, W] from those before them, warped by `flows`
    [B, T - 1, 2, H, W]: a scalar in fp32."""
    warped = warp(images[:, :-1].flatten(0, 1), flows.flatten(0, 1))
    return l1(warped, images[:, 1:].flatten(0, 1))


def mask_loss(masks: Tensor, known: Tensor) -> Tensor:
    """The L1 distance of masks [B, T - 1, 1, H, W], 1 where a frame is not taken from the one
    before, from where that is right: a scalar in fp32."""
    return l1(masks[:, :, 0], 1 - known.float())


def consistency_sums(
    made: Tensor, found: Tensor, images: Tensor, flows: Tensor, known: Tensor
) -> dict[str, Tensor]:
    """Sums over the pixels where `flows` [B, T - 1, 2, H, W] are `known`, float64 scalars; divide
    by `known`, their number.

    `flow_error`: the length in pixels of the difference of the flows `found` from `flows`.
    `warping_error`: the mean difference, in the range from -1 to 1, of generated frames `made`
    [B, T, 3, H, W] from those before them, warped by the reference flow. `warping_error_real`: that
    of the true frames `images`, which is not 0 with noise, or where flows are not whole pixels.
    """
    with torch.autocast(made.device.type, enabled=False):
        weight = known.double()
        error = (found.double() - flows.double()).square().sum(2).sqrt()
        return {
            "flow_error": (error * weight).sum(),
            "warping_error": _warping_error(made, flows, weight),
            "warping_error_real": _warping_error(images, flows, weight),
            "known": weight.sum(),
        }


def _warping_error(frames: Tensor, flows: Tensor, weight: Tensor) -> Tensor:
    warped = warp(frames[:, :-1].flatten(0, 1), flows.flatten(0, 1))
    difference = (warped - frames[:, 1:].flatten(0, 1).float()).abs().double().mean(1)
    return (difference * weight.flatten(0, 1)).sum()


def guidance_loss(made: Tensor, guidance: Tensor) -> Tensor:
    """The L1 distance of frames [B, T, 3, H, W] from the colours of the points that they show
    [B, T, 4, H, W], where the mask, its last channel, is 1; the mean over the frames but the first,
    which has no colours, of the mean over such pixels: a scalar in fp32."""
    colours, mask = guidance[:, 1:, :3].float(), guidance[:, 1:, 3:].float()
    differences = ((made[:, 1:].float() - colours).abs() * mask).mean(2).sum((2, 3))
    return (differences / mask.sum((2, 3, 4)).clamp(min=1)).mean()


def revisit_sums(made: Tensor, images: Tensor, points: Tensor) -> dict[str, Tensor]:
    """How well sequences show again what has been out of sight; sums over points that a frame shows
    and that were visible, then not, before it: float64 scalars. Divide by `revisited`, the number
    of these points, counted in each frame.

    `revisit_error`: the mean difference, in the range from -1 to 1, of the colour of a point in
    generated frames `made` [B, T, 3, H, W] from its colour in the last frame that had shown it
    before it was out of sight. `revisit_error_real`: that of the true frames `images`. `points`
    int64 [B, T, H, W] are below 0 where none is known.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=made.device)
    for sequences in zip(made, images, points, strict=True):
        sums += _revisits(torch.cat(sequences[:2], 1).double(), sequences[2])
    made_error, real_error, count = sums.unbind()
    return {"revisit_error": made_error, "revisit_error_real": real_error, "revisited": count}


def _revisits(frames: Tensor, points: Tensor) -> Tensor:
    """The three sums of one sequence, frames [T, 6, H, W] of generated and true colours."""
    seen = [visible(now) for now in points]
    known = torch.cat([numbers for numbers, _ in seen]).unique()
    device = frames.device
    last = torch.full(known.shape, len(frames), device=device)
    """The last frame that showed a point, and its colour there."""
    colours = torch.zeros(*known.shape, 6, dtype=frames.dtype, device=device)
    before = torch.zeros_like(colours)
    """The colour at the end of the visit before this one."""
    again = torch.zeros(known.shape, dtype=torch.bool, device=device)
    """Whether there was one."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for time, (numbers, pixels) in enumerate(seen):
        places = torch.searchsorted(known, numbers)
        returns = last[places] < time - 1
        before[places] = torch.where(returns[:, None], colours[places], before[places])
        again[places] |= returns
        now, weight = frames[time].flatten(1)[:, pixels].t(), again[places].double()
        errors = (now - before[places]).abs().view(-1, 2, 3).mean(2)
        sums += torch.cat((weight @ errors, weight.sum()[None]))
        last[places], colours[places] = time, now
    return sums
