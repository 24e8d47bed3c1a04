"""The norm of many tensors at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


@torch.no_grad()
def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all values of `tensors`, float32, a scalar on the device of the first one; 0 if
    there are no tensors. The host does not wait for it."""
    norms: list[Tensor] = []
    for group in by_device_and_dtype(tensors):
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


def by_device_and_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of the same device and type, as torch's functions for many tensors
    need them."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
