"""The moving average of weights."""

from pathlib import Path

import pytest
import torch
from support.training import engine, fit_until
from torch import Tensor, nn

from hpc_amp.train.ema import WeightAverage


def average_of(live: nn.Module, decay: float) -> WeightAverage:
    return WeightAverage({"net": live}, decay, value=Tensor.detach)


def test_the_average_follows_its_formula() -> None:
    live = nn.Linear(2, 1, bias=False)
    average = average_of(live, decay=0.3)
    expected = live.weight.detach().clone()
    for update in range(1, 6):
        nn.init.normal_(live.weight)
        average.update()
        decay = min(0.3, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * live.weight.detach()
        torch.testing.assert_close(average.networks["net"].weight, expected)
    assert average.updates == 5


def test_it_is_a_copy_until_its_start() -> None:
    live = nn.Linear(1, 1, bias=False)
    average = WeightAverage({"net": live}, 0.5, lambda tensor: tensor, start=2)
    for value in (1.0, 2.0):
        nn.init.constant_(live.weight, value)
        average.update()
        assert average.networks["net"].weight.item() == value
    nn.init.constant_(live.weight, 3.0)
    average.update()
    assert average.networks["net"].weight.item() == pytest.approx(3 - 2 / 11)


def test_buffers_follow_and_integers_are_copied() -> None:
    live = nn.BatchNorm1d(2)
    average = average_of(live, decay=0.5)
    live(torch.randn(8, 2) + 3)
    average.update()
    mean = average.networks["net"].running_mean
    assert live.running_mean is not None
    torch.testing.assert_close(mean, live.running_mean * (1 - 2 / 11))
    assert average.networks["net"].num_batches_tracked == 1


def test_tied_weights_are_averaged_once() -> None:
    live = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    live[1].weight = live[0].weight
    nn.init.zeros_(live[0].weight)
    average = average_of(live, decay=0.5)
    nn.init.ones_(live[0].weight)
    average.update()
    for layer in average.networks["net"]:
        torch.testing.assert_close(layer.weight, torch.full((1, 1), 1 - 2 / 11))


def test_it_is_no_part_of_the_training() -> None:
    live = nn.Linear(2, 2)
    average = average_of(live, decay=0.9)
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


TOO_SMALL_FOR_FP16 = {
    "schedule": {"name": "constant", "warmup": 0},
    "optimizer": {"lr": 1e-5, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
}


@pytest.mark.parametrize("mode", ["O2", "O3"])
def test_the_average_of_half_precision_weights_is_fp32(mode: str, tmp_path: Path) -> None:
    """It follows the masters, where there are some: updates that fp16 has no digits for count."""
    made = engine(tmp_path, precision=mode, ema=0.9, epochs=4, **TOO_SMALL_FOR_FP16)
    live = made.networks["model"]
    assert made.average is not None
    averaged = made.average.networks["model"]
    before = {key: value.clone() for key, value in averaged.state_dict().items()}
    expected = {key: value.clone() for key, value in before.items()}
    for update, batch in enumerate([*made.data.epoch(0), *made.data.epoch(1)], 1):
        made.train_step(batch)
        decay = min(0.9, (1 + update) / (10 + update))
        now = live.state_dict()
        expected = {k: decay * mean + (1 - decay) * now[k] for k, mean in expected.items()}
    assert {value.dtype for value in averaged.state_dict().values()} == {torch.float32}
    torch.testing.assert_close(dict(averaged.state_dict()), expected, rtol=1e-6, atol=0)
    moved = [bool((averaged.state_dict()[key] != before[key]).any()) for key in before]
    assert mode == "O3" or all(moved)


@pytest.mark.parametrize("mode", ["O2", "O3"])
def test_the_average_of_half_precision_weights_is_resumed_and_evaluated(
    mode: str, tmp_path: Path
) -> None:
    precision = {"mode": mode, "init_scale": 2.0**24, "growth_interval": 3}
    whole = engine(tmp_path / "whole", precision=precision, ema=0.9)
    whole.fit()
    fit_until(engine(tmp_path / "parts", precision=precision, ema=0.9), 3)
    last = engine(tmp_path / "parts", attempt=2, precision=precision, ema=0.9)
    last.fit()
    assert whole.average is not None and last.average is not None
    ends = [dict(made.average.networks["model"].state_dict()) for made in (whole, last)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert whole.metrics == last.metrics
    sums = whole.task.evaluate(
        next(whole.task.evaluation_batches()), _still(whole.average.networks)
    )
    assert whole.metrics["error"] == pytest.approx(sums["squares"].item() / 7, rel=1e-9)


def _still(networks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: network.eval() for name, network in networks.items()}
