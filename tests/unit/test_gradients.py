"""The average of gradients over the ranks; with one rank, it leaves them as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpc_amp.distributed.gradients import average_gradients


@pytest.mark.usefixtures("alone")
def test_gradients_get_the_memory_order_of_their_weights() -> None:
    """A fused optimizer reads them in this order, whatever theirs is."""
    weight = nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    other, unused = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2))
    gradient = torch.randn(4, 3, 3, 3)
    weight.grad, other.grad = gradient.clone(), torch.ones(5)
    flags = torch.tensor([True, False, True])
    assert average_gradients([weight, other, unused], flags) == [True, False, True]
    assert torch.equal(weight.grad, gradient)
    assert weight.grad.stride() == weight.stride() != gradient.stride()
    assert torch.equal(other.grad, torch.ones(5))
    assert unused.grad is None


@pytest.mark.usefixtures("alone")
def test_weights_of_several_types_are_averaged_by_type() -> None:
    weights = [nn.Parameter(torch.randn(3).to(dtype)) for dtype in (torch.float32, torch.float16)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    assert average_gradients(weights, torch.tensor([True])) == [True]
    assert all(torch.equal(weight.grad, torch.full_like(weight, 2.0)) for weight in weights)
