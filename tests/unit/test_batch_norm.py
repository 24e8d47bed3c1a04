"""The statistics of batch norms of averaged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.dcgan import dcgan
from support.paired import paired
from support.training import FEATURES, Regression, engine, fit_until
from torch import Tensor, nn

from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Networks
from hpc_amp.train.batch_norm import BatchNormEstimate
from hpc_amp.train.engine import Engine


def batches(count: int, size: int = 16) -> list[Tensor]:
    stream = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 4, 4, generator=stream) * n + n for n in range(1, count + 1)]


def two_norms() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).eval()


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of each channel, in float64."""
    values = x.double().transpose(0, 1).flatten(1)
    return values.mean(1), values.var(1)


@torch.no_grad()
def test_statistics_are_those_of_all_inputs() -> None:
    """Each batch is normalised by its own statistics on its way to the second layer."""
    network = two_norms()
    first, tanh, convolution, second = network
    inputs = batches(3)
    hidden = []
    for x in inputs:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        normal = (x - mean[:, None, None]) / (variance[:, None, None] + first.eps).sqrt()
        hidden.append(convolution(tanh(normal)))
    with BatchNormEstimate([network], World()):
        for x in inputs:
            network(x)
    for layer, seen in ((first, inputs), (second, hidden)):
        mean, variance = moments(torch.cat(seen))
        torch.testing.assert_close(layer.running_mean.double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.running_var.double(), variance, rtol=1e-5, atol=1e-6)
        assert layer.num_batches_tracked == 0 and not layer.training


@torch.no_grad()
def test_a_large_mean_does_not_hide_the_variance() -> None:
    """Sums of squares in fp32, or in half precision, would."""
    layer = nn.BatchNorm1d(1).eval()
    x = torch.randn(4096, 1, generator=torch.Generator().manual_seed(0)) + 3000
    with BatchNormEstimate([layer], World()), torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert layer.running_var is not None
    assert layer.running_var.item() == pytest.approx(x.double().var().item(), rel=1e-3)


@torch.no_grad()
def test_a_layer_without_input_keeps_its_statistics_and_an_error_changes_none() -> None:
    network = nn.ModuleList([nn.BatchNorm1d(2), nn.BatchNorm1d(2)]).eval()
    for layer in network:
        nn.init.constant_(layer.running_mean, 7.0)
    with BatchNormEstimate([network], World()):
        network[0](torch.randn(8, 2))
    assert network[0].running_mean.abs().max() < 3
    assert (network[1].running_mean == 7).all()
    before = network[0].running_mean.clone()
    wrong = nn.Sequential(network[0], nn.BatchNorm1d(3)).eval()
    with pytest.raises(RuntimeError, match="size"), BatchNormEstimate([wrong], World()):
        wrong(torch.randn(8, 2))
    assert (network[0].running_mean == before).all()


class Normalized(Regression):
    """A regression with batch norm."""

    name: ClassVar[str] = "normalized"

    def build_networks(self) -> dict[str, nn.Module]:
        layers = nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)
        return {"model": nn.Sequential(*layers)}

    def forward_pass(self, batch: Tensor, networks: Networks) -> bool:
        torch.rand(1)  # must not change what training draws
        networks["model"](batch)
        return True


class Silent(Normalized):
    """It does not say what a pass is."""

    def forward_pass(self, batch: Tensor, networks: Networks) -> bool:
        return False


def norm_of(made: Engine) -> nn.BatchNorm1d:
    assert made.average is not None
    network: Any = made.average.networks["model"]
    return network[1]  # type: ignore[no-any-return]


def test_weights_that_moved_quickly_are_evaluated_with_their_own_statistics(tmp_path: Path) -> None:
    """A batch norm takes out scale and shift of the weights before it. With the statistics of the
    weights as they were, the averaged network would be another one."""
    errors = {}
    for count in (0, 30):
        made = engine(
            tmp_path / str(count),
            Normalized,
            ema=0.1,
            ema_batch_norm=count,
            epochs=30,
            log_every=50,
        )
        made.fit()
        before = made.metrics["error"]
        live: Any = made.networks["model"]
        with torch.no_grad():
            live[0].weight *= 2
            live[0].bias += 20
        for _ in range(30):
            assert made.average is not None
            made.average.update()
        made.evaluate()
        errors[count] = before, made.metrics["error"]
    assert errors[30][1] == pytest.approx(errors[30][0], rel=0.05)
    assert errors[0][1] > 3 * errors[30][1]


def test_training_does_not_notice(tmp_path: Path) -> None:
    """Weights, statistics of the live network and random numbers are as without an estimate."""
    made = {
        count: engine(tmp_path / str(count), Normalized, ema=0.9, ema_batch_norm=count)
        for count in (0, 3)
    }
    for each in made.values():
        each.fit()
    torch.testing.assert_close(
        dict(made[0].networks["model"].state_dict()),
        dict(made[3].networks["model"].state_dict()),
        rtol=0,
        atol=0,
    )
    averaged = [norm_of(each) for each in made.values()]
    assert (averaged[0].weight == averaged[1].weight).all()
    assert (averaged[0].running_var != averaged[1].running_var).all()


def test_a_task_that_does_not_say_what_a_pass_is_keeps_averaged_statistics(tmp_path: Path) -> None:
    silent = engine(tmp_path / "silent", Silent, ema=0.9)
    off = engine(tmp_path / "off", Normalized, ema=0.9, ema_batch_norm=0)
    for each in (silent, off):
        each.fit()
    assert (norm_of(silent).running_var == norm_of(off).running_var).all()  # type: ignore[operator,union-attr]


def test_a_run_without_evaluations_ends_with_an_estimate(tmp_path: Path) -> None:
    runs = [
        engine(tmp_path / str(every), Normalized, ema=0.9, evaluate_every=every) for every in (0, 1)
    ]
    for made in runs:
        made.fit()
    saved = [
        torch.load(tmp_path / name / "checkpoints" / "step-00000010" / "average.pt")["model"]
        for name in "01"
    ]
    torch.testing.assert_close(saved[0], saved[1], rtol=0, atol=0)
    assert (saved[0]["1.running_mean"] == norm_of(runs[1]).running_mean).all()


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_a_resume_is_bit_exact(stop: int, tmp_path: Path) -> None:
    """Also where an evaluation is due in the step of the stop (5 of 10)."""
    whole = engine(tmp_path / "whole", Normalized, ema=0.9, ema_batch_norm=3)
    whole.fit()
    fit_until(engine(tmp_path / "parts", Normalized, ema=0.9, ema_batch_norm=3), stop)
    last = engine(tmp_path / "parts", Normalized, attempt=2, ema=0.9, ema_batch_norm=3)
    last.fit()
    assert whole.average is not None and last.average is not None
    ends = [dict(made.average.networks["model"].state_dict()) for made in (whole, last)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert whole.metrics == last.metrics


@pytest.mark.parametrize("model", ["spade", "dcgan"])
def test_generators_with_batch_norm_are_estimated(model: str, tmp_path: Path) -> None:
    """The statistics of each layer are those of one more pass over the same batches."""
    common: dict[str, Any] = {"epochs": 1, "ema": 0.9, "ema_batch_norm": 2}
    if model == "spade":
        made = paired(tmp_path, "spade", spade={"norm": "batch"}, **common)
    else:
        made = dcgan(tmp_path, **common)
    made.fit()
    assert made.average is not None
    generator = made.average.networks["generator"].eval()
    layers = [m for m in generator.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(layers) > 1
    first = layers[0]
    seen: list[Tensor] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for step, (batch,) in enumerate(made.data.epoch(0)):
            if step < 2:
                made.task.forward_pass(batch, made.average.networks)
    mean, variance = moments(torch.cat(seen))
    assert first.running_mean is not None and first.running_var is not None
    torch.testing.assert_close(first.running_mean.double(), mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first.running_var.double(), variance, rtol=1e-4, atol=1e-6)
