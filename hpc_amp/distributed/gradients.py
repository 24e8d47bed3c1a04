"""The exchange of gradients between ranks where DistributedDataParallel does not do it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Give each of `parameters` the mean of its gradients over all ranks, where a rank without one
    counts as 0. One that has a gradient on no rank gets none. A collective call, with the same
    parameters in the same order on every rank."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for alike in by_dtype.values():
        values = [_gradient(parameter).reshape(-1) for parameter in alike]
        has_one = torch.tensor([float(p.grad is not None) for p in alike]).to(values[0])
        together = torch.cat([*values, has_one])
        # Before they are added: half precision overflows early.
        together.div_(dist.get_world_size())
        dist.all_reduce(together)
        *means, anywhere = together.split([*(len(value) for value in values), len(alike)])
        for parameter, mean, found in zip(alike, means, anywhere.tolist(), strict=True):
            parameter.grad = mean.view_as(parameter) if found else None


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
