"""Gradient penalties: losses that contain a gradient of a network with respect to its input.

The discriminator runs in fp32 here, also under autocast: the inner gradient of a half-precision
pass is rounded before it is squared, underflows without a scale of its own, and overflows with the
scale of another loss. The penalty itself goes backward with the other losses, at their loss scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Discriminate = Callable[[Tensor], Sequence[Tensor]]
"""Images [B, C, H, W] to logits, one tensor [B, ...] for each scale."""


def input_gradient(discriminate: Discriminate, images: Tensor) -> Tensor:
    """The gradient [B, C, H, W] of the sum of mean logits of each scale with respect to `images`,
    in fp32, such that a loss of it can go backward."""
    with torch.autocast(images.device.type, enabled=False):
        points = images.detach().float().requires_grad_(True)
        logits = discriminate(points)
        total = torch.stack([part.float().flatten(1).mean(1).sum() for part in logits]).sum()
        (gradient,) = torch.autograd.grad(total, points, create_graph=True)
        return gradient


def r1_penalty(discriminate: Discriminate, real: Tensor) -> Tensor:
    """R1 (Mescheder et al., 2018): half the squared norm of the discriminator's gradient at real
    images, averaged over the batch: a scalar in fp32. Multiply it by gamma, such as 10."""
    return 0.5 * input_gradient(discriminate, real).flatten(1).square().sum(1).mean()


def gradient_penalty(discriminate: Discriminate, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """WGAN-GP (Gulrajani et al., 2017): how far the norm of the gradient is from 1 between real and
    generated images, squared and averaged: a scalar in fp32. `mix` [B] from 0 to 1 says where
    between `fake` and `real`."""
    share = mix.float()[:, None, None, None].to(real.device)
    between = share * real.float() + (1 - share) * fake.detach().float()
    gradient = input_gradient(discriminate, between)
    # The square root of 0 has no derivative.
    norm = (gradient.flatten(1).square().sum(1) + 1e-12).sqrt()
    return (norm - 1).square().mean()
