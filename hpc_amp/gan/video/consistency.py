"""Losses and metrics of flows, and of how well frames follow each other. All in fp32 or fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.gan.losses import l1
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
