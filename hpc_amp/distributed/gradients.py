"""The average of gradients over all ranks where DistributedDataParallel does not compute it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def average_gradients(parameters: Sequence[nn.Parameter], flags: Tensor) -> list[bool]:
    """Replace the gradient of each parameter by its mean over all ranks.

    A rank without a gradient counts as 0. A parameter without a gradient on any rank keeps none.
    `flags`: bool [N] on the device of the parameters. Returns for each of them whether it is true
    on any rank. The host waits for the device. A collective call: every rank passes the same
    parameters in the same order. There is one exchange for each type of parameters.
    """
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    raised: list[bool] = []
    for alike in by_dtype.values():
        values = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in alike]
        has_one = torch.tensor([float(p.grad is not None) for p in alike])
        marks = [has_one.to(values[0], non_blocking=True), flags.to(values[0].dtype)]
        together = torch.cat([*values, *marks])
        # Divide first, because a sum may overflow in half precision.
        together.div_(dist.get_world_size())
        dist.all_reduce(together)
        sizes = [*(len(value) for value in values), len(alike) + len(flags)]
        *means, anywhere = together.split(sizes)
        found = [mark > 0 for mark in anywhere.tolist()]
        for parameter, mean, has_gradient in zip(alike, means, found, strict=False):
            parameter.grad = _like(parameter, mean) if has_gradient else None
        raised = found[len(alike) :]
    return raised


def _like(parameter: Tensor, values: Tensor) -> Tensor:
    """`values` [N] in the shape and the memory order of `parameter`, which fused optimizers rely
    on."""
    shaped = values.view_as(parameter)
    if shaped.stride() == parameter.stride():
        return shaped
    return torch.empty_like(parameter, requires_grad=False).copy_(shaped)
