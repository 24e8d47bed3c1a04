"""The order in memory of networks."""

from __future__ import annotations

import torch
from torch import nn

from hpc_amp.train.memory_format import to_channels_last


def test_a_convolution_that_onednn_gets_wrong_sees_contiguous_images() -> None:
    """In channels-last order, the backward pass of the first one corrupts the memory."""
    torch.manual_seed(1)
    narrow, wide = nn.Conv2d(4, 16, 1, stride=2), nn.Conv2d(16, 16, 1, stride=2)
    orders = []
    for module in (narrow, wide):
        module.register_forward_hook(
            lambda module, inputs, output: orders.append(
                (inputs[0].is_contiguous(), output.is_contiguous())
            )
        )
    network = to_channels_last(nn.Sequential(narrow, wide)).double()
    images = torch.randn(2, 4, 8, 8, dtype=torch.float64)

    found = network(images.to(memory_format=torch.channels_last))

    assert orders == [(True, True), (True, False)]
    assert narrow.weight.stride() == (4, 1, 1, 1) and wide.weight.stride() == (16, 1, 16, 16)
    expected = torch.nn.functional.conv2d(images, narrow.weight, narrow.bias, stride=2)
    expected = torch.nn.functional.conv2d(expected, wide.weight, wide.bias, stride=2)
    assert torch.allclose(found, expected)


def test_images_may_be_given_by_name() -> None:
    narrow = to_channels_last(nn.Conv2d(4, 16, 1, stride=2))
    images = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)

    assert narrow(input=images).is_contiguous()
    assert torch.equal(narrow(input=images), narrow(images))
