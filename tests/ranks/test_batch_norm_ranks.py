"""The statistics of batch norms of averaged weights, on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.dcgan import GAN, TRAIN
from support.rank_trainings import train_all
from support.training import curve
from support.warm import Warm
from torch import Tensor

pytestmark = pytest.mark.ranks

COMMON: dict[str, Any] = {
    "task": "dcgan",
    **TRAIN,
    "gan": GAN,
    "epochs": 2,
    "ema": 0.9,
    "ema_batch_norm": 3,
    "log_every": 1,
    "device": "cpu",
}
# With this rate, the weights do not depend on how a batch is divided.
STILL: dict[str, Any] = {**COMMON, "gan": {**GAN, "lr": 0.0}}
AVERAGED: dict[str, Any] = {**STILL, "ema_batch_norm": 0}


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was stopped twice."""
    made = tmp_path_factory.mktemp("batch norm")
    one = [(made / "still-1", STILL, 0), (made / "averaged-1", AVERAGED, 0)]
    two = [(made / "still-2", STILL, 0), (made / "whole", COMMON, 0)]
    stopped = [(made / "stopped", COMMON, stop) for stop in (2, 4, 0)]
    train_all(warm, made, {1: one, 2: [*two, *stopped]})
    return made


def averaged(run: Path) -> dict[str, Tensor]:
    """The averaged generator in the last checkpoint."""
    path = run / "checkpoints" / "step-00000008" / "average.pt"
    generator: dict[str, Tensor] = torch.load(path, weights_only=True)["generator"]
    return generator


def test_two_ranks_estimate_as_one(folder: Path) -> None:
    """Each rank passes half of each batch, and the sums are those of all."""
    one, two, stale = (averaged(folder / name) for name in ("still-1", "still-2", "averaged-1"))
    names = [name for name in one if name.endswith(("running_mean", "running_var"))]
    assert names
    for name in names:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)
        assert (one[name] - stale[name]).abs().max() > 1e-3 * one[name].abs().max(), name
    expected, seen = (curve(folder / run, "eval/frechet_random") for run in ("still-1", "still-2"))
    assert [value for _, value in seen] == pytest.approx([v for _, v in expected], rel=1e-4)


def test_a_resume_on_two_ranks_is_bit_exact(folder: Path) -> None:
    """In the middle of an epoch, and in a step with an evaluation."""
    whole, stopped = (averaged(folder / name) for name in ("whole", "stopped"))
    torch.testing.assert_close(stopped, whole, rtol=0, atol=0)
    for name in ("train/g", "eval/frechet_random"):
        assert curve(folder / "stopped", name) == curve(folder / "whole", name)
        assert curve(folder / "whole", name), name
