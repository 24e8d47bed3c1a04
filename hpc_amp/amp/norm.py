"""The norm of many tensors at once, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


@torch.no_grad()
def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all values of `tensors`, float32, a scalar on the device of the first one; 0 if
    there are no tensors. The host does not wait for it."""
    return _norm(by_device_and_dtype(tensors))


def _norm(groups: Iterable[list[Tensor]]) -> Tensor:
    """`norm` of the tensors in groups of the same device and type."""
    norms: list[Tensor] = []
    for group in groups:
        if group[0].dtype is torch.float16:
            # The fused norm of fp16 tensors is fp16, and overflows for valid gradients.
            norms += [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in group]
        else:
            norms += torch._foreach_norm(group)
    if not norms:
        return torch.zeros(())
    device = norms[0].device
    together = torch.stack([value.to(device, torch.float32) for value in norms])
    total: Tensor = torch.linalg.vector_norm(together)
    return total


@torch.no_grad()
def clip(tensors: Sequence[Tensor], limit: float) -> Tensor:
    """Make `tensors` smaller in place, all by the same factor, so that their norm is at most
    `limit`. Returns the norm that they had, as `norm` does. The host does not wait for it."""
    groups = by_device_and_dtype(tensors)
    total = _norm(groups)
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for group in groups:
        factor_there = factor.to(group[0].device)
        if group[0].dtype is torch.float16:
            # A small factor is 0 in fp16.
            for tensor in group:
                tensor.copy_(tensor.float() * factor_there)
        else:
            torch._foreach_mul_(group, factor_there)
    return total


def by_device_and_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of the same device and type, as torch's functions for many tensors
    need them."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
