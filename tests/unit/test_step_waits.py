"""A step never waits for the device, except for the verdict of a loss scaler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dcgan import dcgan
from support.paired import paired
from support.training import engine
from support.vid2vid import vid2vid
from support.waits import waits
from torch import Tensor

from hpc_amp.tasks.classification.task import Classification
from hpc_amp.train.engine import Engine

SMALL_IMAGES: dict[str, Any] = {
    "data": {"name": "synthetic", "synthetic": {"train": 64, "test": 8, "image_size": 8}},
    "model": {"name": "resnet8"},
    "clip_norm": 1.0,
}
FEW_PAIRS = {"synthetic": {"train": 4, "test": 1}}
SHORT_VIDEOS = {"synthetic": {"train": 4, "test": 1, "frames": 3}}
ENGINES: dict[str, Callable[..., Engine]] = {
    "classification": lambda folder, **train: engine(
        folder, Classification, **SMALL_IMAGES, **train
    ),
    "dcgan": dcgan,
    "spade": lambda folder, **train: paired(
        folder, "spade", images=FEW_PAIRS, batch_size=2, **train
    ),
    "vid2vid": lambda folder, **train: vid2vid(folder, images=SHORT_VIDEOS, batch_size=2, **train),
}


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.usefixtures("one_thread")
def test_a_step_waits_only_for_loss_scalers(name: str, mode: str, tmp_path: Path) -> None:
    made = ENGINES[name](tmp_path, precision=mode, accumulate=2, ema=0.9, log_every=100)
    batches = made.data.epoch(0)
    made.train_step(next(batches))  # the first step allocates
    batch = next(batches)
    seeds = [part.seeds for part in batch if hasattr(part, "seeds")]
    with waits(on_host=seeds) as found:
        made.train_step(batch)
    expected = len(made.updates) if mode == "fp16" else 0
    assert len(found) == expected, "\n".join(found)


READING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.isfinite().all()),
    "mask": lambda x: x[x > 0],
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long().abs()),
}
COPYING: dict[str, Callable[[Tensor], object]] = {
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "tensor": lambda x: torch.tensor([1.0], device=x.device),
}


@pytest.mark.parametrize("kind", [*READING, *COPYING])
def test_each_kind_of_wait_is_found(kind: str) -> None:
    """The control."""
    with waits() as found:
        {**READING, **COPYING}[kind](torch.randn(4))
    assert found


@pytest.mark.parametrize("kind", READING)
def test_waits_in_a_backward_pass_are_found(kind: str) -> None:
    weight = torch.ones(4, requires_grad=True)
    weight.register_hook(lambda gradient: (READING[kind](gradient), None)[1])
    with waits() as found:
        weight.sum().backward()
    assert found
