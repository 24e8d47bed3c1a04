"""The order in memory of weights and of what goes through a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_BLOCK = 16
"""Input channels that oneDNN's kernels work on at once: 8 with AVX2, 16 with AVX-512."""


def to_channels_last(network: nn.Module) -> nn.Module:
    """Bring the weights to channels-last order.

    On CPUs, some convolutions stay in the contiguous order: for a strided 1x1 convolution of fewer
    input channels than a block, oneDNN's gradient of the weights writes beyond its memory
    (uxlfoundation/oneDNN#6035; seen with torch 2.14), which ends the program or changes results.
    """
    network.to(memory_format=torch.channels_last)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and _writes_beyond_its_memory(module):
            module.to(memory_format=torch.contiguous_format)
            module.register_forward_pre_hook(_with_contiguous, with_kwargs=True)
    return network


def _writes_beyond_its_memory(module: nn.Conv2d) -> bool:
    return (
        module.kernel_size == (1, 1)
        and max(module.stride) > 1
        and module.in_channels // module.groups < _BLOCK
        # Not `weight`: to read one that is normalised changes the norm's vectors.
        and next(module.parameters()).device.type == "cpu"
    )


def _with_contiguous(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = {name: _contiguous(value) for name, value in kwargs.items()}
    return tuple(map(_contiguous, args)), named


def _contiguous(value: Any) -> Any:
    return value.contiguous() if torch.is_tensor(value) else value
