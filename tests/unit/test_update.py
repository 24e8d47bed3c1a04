"""One step: phases, accumulation, clipping, and several losses with scalers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.gan import Heads, OnePass, Separate, TinyGan
from support.training import FEATURES, Regression, curve, engine, fit_until
from torch import Tensor, nn

from hpc_amp.tasks.base import Losses, Networks, Phase
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.state import weights_digest


def weights(made: Engine, name: str = "model") -> Tensor:
    return nn.utils.parameters_to_vector(made.networks[name].parameters()).detach().clone()


class Plain(Regression):
    """Without dropout, so that parts of a batch can be compared with the whole."""

    def build_networks(self) -> dict[str, nn.Module]:
        return {"model": nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))}


@pytest.mark.parametrize("mode", ["fp32", "fp16"])
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_is_the_same_update(mode: str, parts: int, tmp_path: Path) -> None:
    ends, losses = [], []
    for accumulate in (1, parts):
        folder = tmp_path / str(accumulate)
        made = engine(folder, Plain, accumulate=accumulate, precision={"mode": mode})
        made.fit()
        ends.append(weights(made))
        losses.append([loss for _, loss in curve(folder, "train/loss")])
        assert made.updates[0].optimizer.param_groups[0]["lr"] > 0
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if mode == "fp32" else {"rtol": 1e-2, "atol": 2e-3}
    torch.testing.assert_close(*ends, **tolerance)
    assert losses[0] == pytest.approx(losses[1], rel=tolerance["rtol"], abs=tolerance["atol"])


@pytest.mark.parametrize("scale", [None, 1024.0, 65536.0])
def test_clipping_comes_after_unscaling(scale: float | None, tmp_path: Path) -> None:
    """The clipped norm is that of the true gradient, at every loss scale."""
    precision = {"mode": "fp16", "static_scale": scale} if scale else {"mode": "fp32"}
    plain_sgd = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    for limit, expected in ((0.01, 0.01), (1e6, None)):
        made = engine(
            tmp_path / str(limit), Plain, precision=precision, clip_norm=limit,
            optimizer=plain_sgd, schedule={"name": "constant", "warmup": 0.0},
        )  # fmt: skip
        before = weights(made)
        made.train_step(next(made.data.epoch(0)))
        moved = (weights(made) - before).norm().item()
        if expected is not None:
            assert moved == pytest.approx(expected, rel=1e-3)
        else:
            assert 0.1 < moved < 10, "the limit was not reached"


class Steep(Regression):
    """1000 weights with a gradient of 3000 each: their norm is too large for fp16."""

    def build_networks(self) -> dict[str, nn.Module]:
        return {"model": nn.Linear(1, 1000, bias=False)}

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        yield {"loss": 3000 * networks["model"](batch.new_ones(1, 1)).float().sum()}


@pytest.mark.parametrize("mode", ["fp32", "O3"])
@pytest.mark.parametrize("limit", [1.0, 1e-3])
def test_gradients_of_any_type_are_clipped(mode: str, limit: float, tmp_path: Path) -> None:
    made = engine(tmp_path, Steep, precision=mode, clip_norm=limit)
    (update,) = made.updates
    made.train_step(next(made.data.epoch(0)))
    assert update.gradient_norm is not None
    assert update.gradient_norm.item() == pytest.approx(3000 * 1000**0.5, rel=1e-3)
    (parameter,) = made.networks["model"].parameters()
    assert parameter.grad is not None
    assert parameter.grad.float().norm().item() == pytest.approx(limit, rel=0.01)


def test_the_optimizer_sees_gradients_without_their_scale(tmp_path: Path) -> None:
    seen = []
    for precision in ({"mode": "fp32"}, {"mode": "fp16"}):
        made = engine(tmp_path / precision["mode"], Plain, precision=precision)
        made.train_step(next(made.data.epoch(0)))
        seen.append(nn.utils.parameters_to_vector([p.grad for p in made.updates[0]._parameters]))
    torch.testing.assert_close(*seen, rtol=1e-2, atol=1e-2)


def test_running_sums_are_means_over_the_batch(tmp_path: Path) -> None:
    made = engine(tmp_path, Plain, accumulate=2, log_every=5, schedule="constant")
    by_hand = []
    for batch in made.data.epoch(0):
        with torch.no_grad():
            by_hand.append(made.task.error(torch.cat(batch), made.networks).square().mean().item())
        made.train_step(batch)
    made.report.log()
    assert curve(tmp_path, "train/loss") == [(5, pytest.approx(sum(by_hand) / 5, rel=1e-5))]
    assert made.updates[0].losses["loss"].count == 0


# -- a task with two networks, two optimizers and three losses -----------------------------------


FP16 = {"mode": "fp16", "init_scale": 256.0, "growth_interval": 1000}


def gan(folder: Path, overflow: dict[str, set[int]] | None = None, **train: Any) -> Engine:
    task = type("TinyGan", (TinyGan,), {"overflow": overflow or {}})
    return engine(folder, task, **{"precision": FP16, **train})


def scales(made: Engine) -> dict[str, float]:
    return {n: s.value for update in made.updates for n, s in update.scalers.items()}


def test_the_engine_is_the_hand_written_loop_of_a_gan(tmp_path: Path) -> None:
    """With two networks, two optimizers, three losses and accumulation, in fp32."""
    made = gan(tmp_path, precision="fp32", accumulate=2, schedule={"warmup": 0.0})
    torch.manual_seed(0)
    generator, critic = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
    generator.load_state_dict(made.networks["generator"].state_dict())
    critic.load_state_dict(made.networks["critic"].state_dict())
    first = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    second = torch.optim.AdamW(generator.parameters(), lr=0.02, weight_decay=0.0)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for o in (first, second)]
    for epoch in range(2):
        for whole in made.data.epoch(epoch):
            batch = torch.cat(whole)
            noise = batch.flip(1)
            first.zero_grad()
            real = F.softplus(-critic(batch + 2)).mean()
            fake = F.softplus(critic(generator(noise).detach())).mean()
            (real + fake).backward()
            first.step()
            second.zero_grad()
            F.softplus(-critic(generator(noise))).mean().backward()
            second.step()
            for schedule in schedules:
                schedule.step()
    made.fit()
    for name, network in (("generator", generator), ("critic", critic)):
        expected = nn.utils.parameters_to_vector(network.parameters()).detach()
        torch.testing.assert_close(weights(made, name), expected, rtol=1e-5, atol=1e-6)
    assert set(made.metrics) == {"error", "accuracy"}
    for name in ("real", "fake", "fooled"):
        assert len(curve(tmp_path, f"train/{name}")) == 10


def test_losses_with_scalers_of_their_own_give_the_gradients_of_their_sum(tmp_path: Path) -> None:
    ends = []
    for precision in ("fp32", FP16):
        made = gan(tmp_path / str(len(ends)), precision=precision, accumulate=2)
        made.fit()
        assert made.report.skipped_steps() == 0
        ends.append(torch.cat([weights(made, "critic"), weights(made, "generator")]))
    torch.testing.assert_close(*ends, rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("loss", ["real", "fake", "fooled"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_overflow_halves_one_scale_and_skips_one_update_once(
    loss: str, accumulate: int, tmp_path: Path
) -> None:
    # The second step, and with accumulation its first part only.
    made = gan(tmp_path, {loss: {accumulate}}, accumulate=accumulate, ema=0.9)
    hit = "generator" if loss == "fooled" else "critic"
    other = "critic" if loss == "fooled" else "generator"
    moved = []
    for step in range(3):
        before = {name: weights(made, name) for name in (hit, other)}
        made.train_step(list(made.data.epoch(0))[step])
        moved.append([not torch.equal(weights(made, n), before[n]) for n in (hit, other)])
    assert moved == [[True, True], [False, True], [True, True]]
    assert scales(made) == {"real": 256, "fake": 256, "fooled": 256, loss: 128}
    assert made.report.skipped_steps() == 1
    assert made.report.loss_scale() == 128
    assert made.average is not None
    assert made.average.updates == 3, "the other network did move"


def test_two_losses_that_overflow_in_one_step_skip_it_once(tmp_path: Path) -> None:
    made = gan(tmp_path, {"real": {0}, "fake": {0}})
    before = weights(made, "critic")
    made.train_step(next(made.data.epoch(0)))
    assert torch.equal(weights(made, "critic"), before)
    assert scales(made) == {"real": 128, "fake": 128, "fooled": 256}
    assert made.report.skipped_steps() == 1


def test_a_gan_resumes_bit_exactly(tmp_path: Path) -> None:
    overflow = {"real": {1, 6}, "fooled": {3, 8}}
    whole = gan(tmp_path / "whole", overflow, ema=0.9, accumulate=1)
    whole.fit()
    digest, scale = weights_digest(whole.networks), scales(whole)
    assert scale == {"real": 64, "fake": 256, "fooled": 64}
    for stop in (2, 4, 5, 7):
        part = gan(tmp_path / "parts", overflow, ema=0.9, attempt=stop)
        part.task.calls.update(dict.fromkeys(("real", "fake", "fooled"), part.step))
        fit_until(part, stop)
    last = gan(tmp_path / "parts", overflow, ema=0.9, attempt=9)
    assert last.step == 7
    last.task.calls.update(dict.fromkeys(("real", "fake", "fooled"), 7))
    last.fit()
    assert (weights_digest(last.networks), scales(last)) == (digest, scale)


class Twice(TinyGan):
    def phases(self) -> tuple[Phase, ...]:
        critic, generator = super().phases()
        return critic, Phase("generator", ("generator",), ("real",), generator.optimizer)


def test_two_losses_of_one_name_are_a_defect_of_the_task(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two losses of the same name"):
        engine(tmp_path, Twice)


# -- several losses of one forward pass, phases of some epochs -------------------------------------


@pytest.mark.parametrize("task", [OnePass, Separate])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_losses_of_one_forward_pass_give_the_gradient_of_their_sum(
    task: type[OnePass], accumulate: int, mode: str, tmp_path: Path
) -> None:
    precision = {**FP16, "mode": mode} if mode == "fp16" else mode
    made = engine(tmp_path, task, precision=precision, accumulate=accumulate)
    critic = Heads() if task is Separate else nn.Linear(FEATURES, 1)
    generator = nn.Linear(FEATURES, FEATURES)
    generator.load_state_dict(made.networks["generator"].state_dict())
    whole = next(made.data.epoch(0))
    made.train_step(whole)
    critic.load_state_dict(made.networks["critic"].state_dict())

    batch = torch.cat(whole)
    images = generator(batch.flip(1))
    fooled, near = F.softplus(-critic(images)).mean(), (images - batch).square().mean()
    (fooled + 0.5 * near).backward()
    found = [p.grad for p in made.updates[1]._parameters]
    close = {"rtol": 1e-5, "atol": 1e-6} if mode == "fp32" else {"rtol": 2e-2, "atol": 2e-3}
    torch.testing.assert_close(found, [p.grad for p in generator.parameters()], **close)
    made.report.log()
    for name, value in {"fooled": fooled, "near": near}.items():
        ((_, shown),) = curve(tmp_path, f"train/{name}")
        assert shown == pytest.approx(value.item(), rel=1e-2), "the loss without its weight"


def test_who_shares_a_backward_pass_shares_a_scaler(tmp_path: Path) -> None:
    shared = engine(tmp_path / "1", OnePass, precision=FP16)
    assert set(scales(shared)) == {"real+fake", "fooled+near", "flat"}
    separate = engine(tmp_path / "2", Separate, precision=FP16)
    assert set(scales(separate)) == {"real", "fake", "fooled", "near", "flat"}


@pytest.mark.parametrize("task", [OnePass, Separate])
def test_an_overflow_of_one_of_several_losses_skips_the_update_once(
    task: type[OnePass], tmp_path: Path
) -> None:
    overflowing = type("Overflowing", (task,), {"overflow": {"fake": {1}}})
    made = engine(tmp_path, overflowing, precision=FP16)
    moved = []
    for batches in list(made.data.epoch(0))[:3]:
        before = weights(made, "critic")
        made.train_step(batches)
        moved.append(not torch.equal(weights(made, "critic"), before))
    assert moved == [True, False, True]
    assert made.report.skipped_steps() == 1
    hit = {"fake"} if task is Separate else {"real+fake"}
    assert {name for name, scale in scales(made).items() if scale == 128} == hit
    assert {name for name, scale in scales(made).items() if scale == 256} == set(scales(made)) - hit


def test_a_phase_runs_in_its_epochs_and_is_reported_for_these(tmp_path: Path) -> None:
    made = engine(tmp_path, OnePass, log_every=4, epochs=2)
    made.fit()
    assert [step for step, _ in curve(tmp_path, "train/real")] == [4, 5, 8, 10]
    assert [step for step, _ in curve(tmp_path, "train/flat")] == [8, 10]
    assert [step for step, _ in curve(tmp_path, "train/lr_late")] == [8, 10]
    assert curve(tmp_path, "train/lr") == curve(tmp_path, "train/lr_critic")


def test_a_network_that_is_not_updated_gets_no_gradient(tmp_path: Path) -> None:
    made = engine(tmp_path, TinyGan)
    made.train_step(next(made.data.epoch(0)))
    before = [p.grad.clone() for p in made.networks["critic"].parameters() if p.grad is not None]
    made.updates[1].run(next(made.data.epoch(0)), lambda: None)
    after = [p.grad for p in made.networks["critic"].parameters()]
    assert len(before) == 2
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert all(p.requires_grad for n in made.networks.values() for p in n.parameters())


class Missing(OnePass):
    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        for losses in super().losses(phase, batch, networks):
            yield {name: loss for name, loss in losses.items() if name != "near"}


class Fewer(TinyGan):
    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        yield next(super().losses(phase, batch, networks))


class Pair(TinyGan):
    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Any]:
        for losses in super().losses(phase, batch, networks):
            yield next(iter(losses.items()))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Missing, "phase `generator` declares the losses fooled\\+near, .* yields `fooled`"),
        (Pair, "yields a tuple, which is not a dictionary"),
        (Fewer, "phase `critic` declares the losses real, fake, .* yields fewer"),
    ],
)
def test_other_losses_than_the_phase_declares_are_an_error(
    task: type[TinyGan], message: str, tmp_path: Path
) -> None:
    made = engine(tmp_path, task)
    with pytest.raises(TrainingError, match=message):
        made.train_step(next(made.data.epoch(0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begins": 1}, "no phase in epoch 0"),
        ({"ends": 1}, "no phase in epoch 1"),
        ({"weights": {"los": 2.0}}, "no loss of the name los"),
    ],
)
def test_phases_that_cannot_be_are_a_defect_of_the_task(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    class Odd(Regression):
        def phases(self) -> tuple[Phase, ...]:
            return (replace(super().phases()[0], **change),)

    with pytest.raises(ValueError, match=message):
        engine(tmp_path, Odd, epochs=2)
