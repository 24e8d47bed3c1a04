"""The moving average of weights."""

from pathlib import Path

import pytest
import torch
from support.training import engine
from torch import nn

from hpc_amp.train.ema import WeightAverage


def test_the_average_follows_its_formula() -> None:
    live = nn.Linear(2, 1, bias=False)
    average = WeightAverage({"net": live}, decay=0.3)
    expected = live.weight.detach().clone()
    for update in range(1, 6):
        nn.init.normal_(live.weight)
        average.update()
        decay = min(0.3, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * live.weight.detach()
        torch.testing.assert_close(average.networks["net"].weight, expected)
    assert average.updates == 5


def test_buffers_follow_and_integers_are_copied() -> None:
    live = nn.BatchNorm1d(2)
    average = WeightAverage({"net": live}, decay=0.5)
    live(torch.randn(8, 2) + 3)
    average.update()
    mean = average.networks["net"].running_mean
    assert live.running_mean is not None
    torch.testing.assert_close(mean, live.running_mean * (1 - 2 / 11))
    assert average.networks["net"].num_batches_tracked == 1


def test_it_is_no_part_of_the_training() -> None:
    live = nn.Linear(2, 2)
    average = WeightAverage({"net": live}, decay=0.9)
    assert not any(p.requires_grad for p in average.networks["net"].parameters())
    assert all(p.requires_grad for p in live.parameters())


def test_the_engine_evaluates_the_average(tmp_path: Path) -> None:
    made = engine(tmp_path, ema=0.99)
    made.fit()
    assert made.average is not None
    sums = made.task.evaluate(next(made.task.evaluation_batches()), _still(made.average.networks))
    assert made.metrics["error"] == pytest.approx(sums["squares"].item() / 7)
    sums = made.task.evaluate(next(made.task.evaluation_batches()), _still(made.networks))
    assert made.metrics["error"] != pytest.approx(sums["squares"].item() / 7)


def test_a_skipped_step_does_not_count(tmp_path: Path) -> None:
    made = engine(tmp_path, ema=0.9, precision={"mode": "fp16", "init_scale": 2.0**20})
    made.fit()
    assert made.average is not None
    assert made.report.skipped_steps() > 0
    assert made.average.updates == made.step - made.report.skipped_steps()


def _still(networks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: network.eval() for name, network in networks.items()}
