"""Losses of conditional GANs. All are means in fp32, also under autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

AdversarialName = Literal["hinge", "lsgan", "nonsaturating"]
Weights = Sequence[Tensor] | None
"""For each scale what each sample counts, [B]: a mean is then one of weighted values. None: all
count 1."""


def discriminator_loss(
    real: Sequence[Tensor],
    fake: Sequence[Tensor],
    kind: AdversarialName = "hinge",
    weights: Weights = None,
) -> Tensor:
    """The loss of a discriminator that distinguishes real from generated images: a scalar in fp32.

    `real` and `fake` are its logits of any shape, one tensor for each scale; scales count equally.
    `hinge` (Lim & Ye, 2017): relu(1 - real) + relu(1 + fake). `lsgan` (Mao et al., 2017):
    ((real - 1)^2 + fake^2) / 2. `nonsaturating` (Goodfellow et al., 2014): binary cross entropy.
    """
    with _fp32(real[0]):
        parts = []
        for place, (on_real, on_fake) in enumerate(zip(real, fake, strict=True)):
            on_real, on_fake = on_real.float(), on_fake.float()
            if kind == "hinge":
                of_real, of_fake = F.relu(1 - on_real), F.relu(1 + on_fake)
            elif kind == "lsgan":
                of_real, of_fake = (on_real - 1).square() / 2, on_fake.square() / 2
            else:
                of_real, of_fake = F.softplus(-on_real), F.softplus(on_fake)
            parts.append(_mean(of_real, weights, place) + _mean(of_fake, weights, place))
        return torch.stack(parts).mean()


def generator_loss(
    fake: Sequence[Tensor], kind: AdversarialName = "hinge", weights: Weights = None
) -> Tensor:
    """How badly generated images deceive a discriminator: a scalar in fp32. Arguments as for
    `discriminator_loss`. `hinge`: -fake; `lsgan`: (fake - 1)^2 / 2; `nonsaturating`:
    softplus(-fake)."""
    with _fp32(fake[0]):
        parts = []
        for place, logits in enumerate(fake):
            logits = logits.float()
            if kind == "hinge":
                loss = -logits
            elif kind == "lsgan":
                loss = (logits - 1).square() / 2
            else:
                loss = F.softplus(-logits)
            parts.append(_mean(loss, weights, place))
        return torch.stack(parts).mean()


def feature_matching_loss(
    real: Sequence[Sequence[Tensor]], fake: Sequence[Sequence[Tensor]], weights: Weights = None
) -> Tensor:
    """The L1 distance between what a discriminator's layers say of generated and of real images
    (Wang et al., 2018): summed over layers, averaged over scales; a scalar in fp32. Each argument
    has a sequence of feature maps for each scale. Real features get no gradient."""
    with _fp32(real[0][0]):
        scales = []
        for place, maps in enumerate(zip(real, fake, strict=True)):
            distances = [(b.float() - a.detach().float()).abs() for a, b in zip(*maps, strict=True)]
            scales.append(torch.stack([_mean(each, weights, place) for each in distances]).sum())
        return torch.stack(scales).mean()


def kl_loss(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of N(mean, exp(log_variance)) from N(0, 1), summed over
    dimensions and averaged over the batch, for [B, D] each: a scalar in fp32 (Kingma & Welling,
    2014)."""
    with _fp32(mean):
        mean, log_variance = mean.float(), log_variance.float()
        each = 1 + log_variance - mean.square() - log_variance.exp()
        return -0.5 * each.flatten(1).sum(1).mean()


def l1(x: Tensor, y: Tensor) -> Tensor:
    """The mean absolute difference of two tensors of one shape: a scalar in fp32."""
    with _fp32(x):
        return F.l1_loss(x.float(), y.float())


def _mean(values: Tensor, weights: Weights, place: int) -> Tensor:
    """The mean of values [B, ...] of the scale `place`."""
    if weights is None:
        return values.mean()
    return (values.flatten(1).mean(1) * weights[place].float()).mean()


def _fp32(like: Tensor) -> torch.autocast:
    """A context in which nothing is cast to half precision."""
    return torch.autocast(like.device.type, enabled=False)
