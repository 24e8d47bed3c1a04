"""Copies of the training state, each into the memory of the one before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpc_amp.train.snapshot import Snapshot


def state() -> dict[str, Any]:
    return {
        "networks": {"model": {"weight": torch.randn(4, 3), "running": torch.randn(4)}},
        "optimizer": {"state": {0: {"momentum": torch.randn(4, 3)}}, "groups": [{"lr": 0.1}]},
        "pair": (torch.tensor(1), "text", None),
    }


def tensors(nested: Any) -> list[Tensor]:
    if isinstance(nested, Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, (list, tuple)):
        return [tensor for part in nested for tensor in tensors(part)]
    return []


def same(copied: Any, live: Any) -> bool:
    pairs = zip(tensors(copied), tensors(live), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def addresses(nested: Any) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors(nested)]


def test_a_copy_is_the_same_nesting_with_the_same_values() -> None:
    live = state()
    copied, complete = Snapshot().take(live)
    complete()
    assert same(copied, live)
    assert isinstance(copied["pair"], tuple) and copied["pair"][1:] == ("text", None)
    assert not set(addresses(copied)) & set(addresses(live))


def test_plain_values_are_those_of_the_moment() -> None:
    """The learning rate moves before the copy of the tensors is complete."""
    live = state()
    copied, complete = Snapshot().take(live)
    live["optimizer"]["groups"][0]["lr"] = 0.2
    complete()
    assert copied["optimizer"]["groups"][0]["lr"] == 0.1


def test_what_a_forward_pass_may_change_is_copied_at_once_and_the_rest_later() -> None:
    live = state()
    running = live["networks"]["model"]["running"]
    expected = running.clone()
    snapshot = Snapshot()
    copied, complete = snapshot.take(live, changing=[running])
    running.add_(1)
    live["networks"]["model"]["weight"].add_(1)  # as nothing but an optimizer would
    complete()
    assert torch.equal(copied["networks"]["model"]["running"], expected)
    changed = live["networks"]["model"]["weight"]
    assert torch.equal(copied["networks"]["model"]["weight"], changed), "this is why it must wait"


def test_the_memory_is_the_same_each_time() -> None:
    snapshot, live = Snapshot(), state()
    reserved = snapshot.reserve(live)
    assert reserved == sum(t.numel() * t.element_size() for t in tensors(live))
    first, complete = snapshot.take(live)
    complete()
    live["networks"]["model"]["weight"].mul_(2)
    second, complete = snapshot.take(live)
    complete()
    assert addresses(first) == addresses(second)
    assert same(second, live)


def test_reserving_reads_no_value() -> None:
    """It runs in a thread while the values change: tensors without values will do."""
    nothing = {"weight": torch.empty(3, 2, device="meta")}
    assert Snapshot().reserve(nothing) == 24


@pytest.mark.parametrize(
    "other",
    [torch.zeros(5), torch.zeros(4, dtype=torch.float64), torch.zeros(8)[::2]],
    ids=["shape", "type", "order"],
)
def test_another_tensor_in_a_place_gets_another_buffer(other: Tensor) -> None:
    snapshot = Snapshot()
    snapshot.take({"x": torch.ones(4)})[1]()
    copied, complete = snapshot.take({"x": other})
    complete()
    assert torch.equal(copied["x"], other)
    assert copied["x"].dtype is other.dtype


def test_the_memory_order_of_images_is_kept() -> None:
    network = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    copied, complete = Snapshot().take(network.state_dict())
    complete()
    assert copied["weight"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(copied["weight"], network.weight)
    assert not copied["weight"].requires_grad
