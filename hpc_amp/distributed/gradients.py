"""The average of gradients over all ranks where DistributedDataParallel does not compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace the gradient of each parameter by its mean over all ranks.

    A rank without a gradient counts as 0. A parameter without a gradient on any rank keeps none. A
    collective call: every rank passes the same parameters in the same order.
    """
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for alike in by_dtype.values():
        values = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in alike]
        has_one = torch.tensor([float(p.grad is not None) for p in alike]).to(values[0])
        together = torch.cat([*values, has_one])
        # Divide first, because a sum may overflow in half precision.
        together.div_(dist.get_world_size())
        dist.all_reduce(together)
        *means, anywhere = together.split([*(len(value) for value in values), len(alike)])
        for parameter, mean, found in zip(alike, means, anywhere.tolist(), strict=True):
            parameter.grad = mean.view_as(parameter) if found else None
