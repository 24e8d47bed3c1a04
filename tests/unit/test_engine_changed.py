"""A checkpoint that meets another configuration: settings are those of the job, state is that of
the checkpoint; and first weights from a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import Regression, Vectors, curve, engine, fit_until, settings
from torch import nn

from hpc_amp.tasks.base import ModelError, TrainingData
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import TrainingError

SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9}


def trained(folder: Path, step: int | None = None, **train: Any) -> Engine:
    """An engine after `step` steps, or at its end, with a checkpoint there."""
    made = engine(folder, **train)
    if step is None:
        made.fit()
    else:
        fit_until(made, step)
    made.tracker.close()
    return made


def options(made: Engine) -> dict[str, Any]:
    (group,) = made.updates[0].optimizer.param_groups
    return dict(group)


# ---- the optimizer -------------------------------------------------------------------------------


def test_a_checkpoint_does_not_bring_its_learning_rate_back(tmp_path: Path) -> None:
    trained(tmp_path, 4, optimizer=SGD, schedule="constant")

    made = engine(tmp_path, attempt=2, optimizer={**SGD, "lr": 0.002}, schedule="constant")
    made.fit()

    rates = [rate for step, rate in curve(tmp_path, "train/lr") if step > 4]
    assert rates == pytest.approx([0.002] * 6)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (SGD, {**SGD, "momentum": 0.5}, {"momentum": 0.5}),
        (SGD, {**SGD, "nesterov": False}, {"nesterov": False}),
        (SGD, {**SGD, "weight_decay": 0.25}, {"weight_decay": 0.25}),
        (
            {"name": "adamw", "betas": (0.9, 0.999)},
            {"name": "adamw", "betas": (0.8, 0.99), "eps": 1e-6},
            {"betas": (0.8, 0.99), "eps": 1e-6},
        ),
    ],
    ids=str,
)
def test_nor_any_other_option(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], expected: dict[str, Any]
) -> None:
    first = trained(tmp_path, 4, optimizer=before)
    state = first.updates[0].optimizer.state_dict()["state"]

    made = engine(tmp_path, attempt=2, optimizer=after)

    assert {name: options(made)[name] for name in expected} == expected
    kept = made.updates[0].optimizer.state_dict()["state"]
    assert kept.keys() == state.keys() != set()
    for number, values in state.items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(kept[number][name]), torch.as_tensor(value)), name
    made.fit()


def test_the_groups_of_an_optimizer_cannot_change(tmp_path: Path) -> None:
    trained(tmp_path, 4, optimizer=SGD)

    with pytest.raises(TrainingError, match="other groups of weights"):
        engine(tmp_path, attempt=2, optimizer={**SGD, "decay_norm_and_bias": False})


# ---- the length, and the learning rate over it ---------------------------------------------------


def test_a_longer_run_has_the_schedule_of_its_whole_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"optimizer": SGD, "schedule": {"name": "cosine", "warmup": 0.0}}
    trained(tmp_path / "a", epochs=2, **train)
    trained(tmp_path / "b", epochs=4, **train)
    capsys.readouterr()

    trained(tmp_path / "a", attempt=2, epochs=4, **train)

    said = capsys.readouterr().out
    now = 0.5 * (1 + math.cos(math.pi * 10 / 20))
    was = 0.5 * (1 + math.cos(math.pi * 9 / 10))
    assert "changed since the checkpoint: train.epochs 2 -> 4" in said
    assert (
        "the run now ends at step 20, not at 10: the learning rate of the next step is "
        f"{now:.4g} of its peak, and was {was:.4g} before"
    ) in said
    longer, whole = (curve(tmp_path / run, "train/lr") for run in ("a", "b"))
    assert [step for step, _ in longer] == list(range(1, 21))
    assert longer[10:] == whole[10:], "the rate is a function of the step and the whole length"
    assert longer[:10] != whole[:10]


def test_a_run_that_goes_on_as_it_was_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 4)
    capsys.readouterr()

    engine(tmp_path, attempt=2)

    said = capsys.readouterr().out
    assert "at step 4" in said
    assert "changed" not in said and "the run ends" not in said


class Decoded(Regression):
    """Its data is decoded by what `data.decoder` names."""

    def prepare_data(self) -> TrainingData:
        data = super().prepare_data()
        data.decoder = self.train.data.decoder
        return data


def test_another_decoder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(attempt: int, decoder: str, task: type[Regression] = Decoded) -> str:
        made = engine(tmp_path, task, attempt=attempt, data={"decoder": decoder})
        fit_until(made, attempt)
        return capsys.readouterr().out

    said(1, "pillow", Regression)  # as a checkpoint of an older version
    assert "WARNING" not in said(2, "pillow")
    assert "WARNING" not in said(3, "pillow")
    assert (
        "WARNING: since the checkpoint: decoder pillow -> dali; results may differ in rounding"
    ) in said(4, "dali")


# ---- what else may change ------------------------------------------------------------------------


def test_precisions_with_fp32_weights_follow_one_another(tmp_path: Path) -> None:
    """The loss scaler begins where there was none, goes on where there was one, and ends."""
    trained(tmp_path, 2, precision="fp32")
    fp16 = trained(tmp_path, 4, attempt=2, precision={"mode": "fp16", "init_scale": 64.0})
    (scaler,) = fp16.updates[0].scalers.values()
    assert (scaler.value, scaler.clean_steps) == (64.0, 2)
    made = trained(tmp_path, 6, attempt=3, precision="bf16")
    assert not made.updates[0].scalers
    assert trained(tmp_path, attempt=4, precision="fp32").step == 10


@pytest.mark.parametrize(
    ("after", "scale"),
    [({"static_scale": 8.0}, 8.0), ({"max_scale": 32.0, "init_scale": 2.0}, 32.0)],
)
def test_a_loss_scale_is_what_the_job_allows(
    tmp_path: Path, after: dict[str, float], scale: float
) -> None:
    trained(tmp_path, 3, precision={"mode": "fp16", "init_scale": 64.0})

    made = engine(tmp_path, attempt=2, precision={"mode": "fp16", **after})

    (scaler,) = made.updates[0].scalers.values()
    assert scaler.value == scale


def test_an_average_that_is_new_begins_with_the_weights(tmp_path: Path) -> None:
    trained(tmp_path, 3)

    made = engine(tmp_path, attempt=2, ema=0.9)

    assert made.average is not None and made.average.updates == 0
    averaged = made.average.networks["model"].parameters()
    for mean, weight in zip(averaged, made.networks["model"].parameters(), strict=True):
        assert torch.equal(mean, weight)


def test_data_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with other images, for one: the place in the data would be another."""
    trained(tmp_path, 3)
    monkeypatch.setattr("support.training.STEPS_PER_EPOCH", 7)

    with pytest.raises(
        TrainingError, match="trained with 5 steps in an epoch, but there are 7 now"
    ):
        engine(tmp_path, attempt=2)


def test_other_samples_in_as_many_steps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as those of a folder from which a damaged image was removed."""
    trained(tmp_path, 3)
    samples = Vectors(settings()).samples
    monkeypatch.setattr(
        Vectors, "samples", property(lambda self: samples + 1, lambda *set: None), raising=False
    )
    capsys.readouterr()

    trained(tmp_path, 4, attempt=2)

    line = f"WARNING: the training data has {samples + 1} samples now, and had {samples}: "
    assert line in capsys.readouterr().out


# ---- first weights -------------------------------------------------------------------------------


def weights_of(made: Engine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in made.networks["model"].state_dict().items()}


class Tuned(Regression):
    """Begins with the weights of a file."""

    file = ""

    def first_weights(self) -> dict[str, str]:
        return {"model": self.file}


@pytest.fixture
def pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The weights that `Tuned` begins with."""
    made = trained(tmp_path / "first")
    monkeypatch.setattr(Tuned, "file", f"{made.store.path(made.step)}/networks.pt")
    return weights_of(made)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "O2"])
def test_a_run_begins_with_the_weights_of_another(
    tmp_path: Path, pretrained: dict[str, torch.Tensor], precision: str
) -> None:
    made = engine(tmp_path / "second", Tuned, precision=precision, ema=0.9, seed=7)

    assert made.step == 0
    assert made.average is not None
    averaged = made.average.networks["model"].state_dict()
    for name, value in weights_of(made).items():
        assert torch.equal(value, pretrained[name])
        assert torch.equal(averaged[name], pretrained[name])


def test_a_run_with_a_checkpoint_does_not_need_them(
    tmp_path: Path, pretrained: dict[str, torch.Tensor]
) -> None:
    """The run that they came from keeps only its newest checkpoints."""
    second = engine(tmp_path / "second", Tuned)
    fit_until(second, 3)
    Path(Tuned.file).unlink()

    again = engine(tmp_path / "second", Tuned, attempt=2)

    assert again.step == 3
    with pytest.raises(ModelError, match="cannot be read"):
        engine(tmp_path / "third", Tuned)


def test_a_run_does_not_begin_with_random_weights_instead(
    tmp_path: Path, pretrained: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint was there when the networks were built, and could not be read afterwards."""
    second = engine(tmp_path / "second", Tuned)
    fit_until(second, 3)
    again = Engine.__dict__["_resume"]

    def without_checkpoints(self: Engine, chosen: int | None) -> list[str]:
        for path in (tmp_path / "second" / "checkpoints").glob("*/networks.pt"):
            path.write_bytes(b"damaged since")
        return list(again(self, chosen))

    monkeypatch.setattr(Engine, "_resume", without_checkpoints)
    with pytest.raises(TrainingError, match="no checkpoint of the run can be read"):
        engine(tmp_path / "second", Tuned, attempt=2)


def test_weights_of_another_network_are_refused(
    tmp_path: Path, pretrained: dict[str, torch.Tensor]
) -> None:
    class Wider(Tuned):
        def build_networks(self) -> dict[str, nn.Module]:
            return {"model": nn.Linear(6, 1)}

    with pytest.raises(ModelError, match="belong to another model"):
        engine(tmp_path / "second", Wider)
