"""The curves beside losses: gradient norms, waiting for data, memory, epoch, top-5; and the picture
of inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.gan import TinyGan
from support.training import FEATURES, Regression, Vectors, curve, engine, fit_until, settings
from torch import Tensor, nn

from hpc_amp.amp.norm import norm
from hpc_amp.data.images import Normalization
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Phase, TrainingData
from hpc_amp.tasks.classification.task import Classification
from hpc_amp.train.engine import Engine

STILL = {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0}


class Plain(Regression):
    """Without dropout, and with weights that do not move."""

    def build_networks(self) -> dict[str, nn.Module]:
        return {"model": nn.Linear(FEATURES, 1)}


def true_norm(made: Engine, step: int) -> float:
    """The norm of the gradient in a step, with the present weights."""
    batch = next(iter(made.data.epoch(0, step)))[0]
    model = made.networks["model"]
    loss = (model(batch)[:, 0] - batch.mean(1)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()


@pytest.mark.parametrize("clip", [None, 0.001, 100.0])
@pytest.mark.parametrize("precision", ["fp32", {"mode": "fp16", "static_scale": 1024.0}])
def test_the_norm_is_of_unscaled_gradients_that_are_not_clipped(
    precision: Any, clip: float | None, tmp_path: Path
) -> None:
    made = engine(tmp_path, Plain, precision=precision, clip_norm=clip, log_every=2,
                  epochs=1, optimizer={**STILL, "lr": 1e-12})  # fmt: skip
    made.fit()
    norms = curve(tmp_path, "train/grad_norm")
    assert [step for step, _ in norms] == [2, 4, 5]
    close = 1e-5 if precision == "fp32" else 1e-2
    for step, value in norms:
        assert value == pytest.approx(true_norm(made, step - 1), rel=close)


def test_a_norm_is_measured_where_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing in other steps, and nothing where clipping computes it."""
    measured = []

    def counted(tensors: list[Tensor]) -> Tensor:
        measured.append(len(tensors))
        return norm(tensors)

    monkeypatch.setattr("hpc_amp.train.update.norm", counted)
    engine(tmp_path / "one", Plain, log_every=4).fit()
    assert measured == [2, 2, 2]  # weight and bias in the steps 4, 8, 10
    engine(tmp_path / "two", Plain, log_every=4, clip_norm=1.0).fit()
    assert len(measured) == 3


class Seldom(TinyGan):
    """The generator is updated in each third step."""

    def phases(self) -> tuple[Phase, ...]:
        critic, generator = super().phases()
        return critic, replace(generator, every=3)


def test_each_phase_has_its_norm(tmp_path: Path) -> None:
    engine(tmp_path, Seldom, log_every=5).fit()
    for name in ("critic", "generator"):
        norms = curve(tmp_path, f"train/grad_norm_{name}")
        assert [step for step, _ in norms] == [5, 10]
        assert all(value > 0 for _, value in norms)
    assert curve(tmp_path, "train/grad_norm") == []


def test_a_resumed_run_has_the_same_curve(tmp_path: Path) -> None:
    engine(tmp_path / "whole", log_every=4).fit()
    fit_until(engine(tmp_path / "parts", log_every=4), 6)
    engine(tmp_path / "parts", log_every=4, attempt=2).fit()
    expected = curve(tmp_path / "whole", "train/grad_norm")
    assert curve(tmp_path / "parts", "train/grad_norm") == expected
    assert len(expected) == 3


def test_a_skipped_update_has_no_norm(tmp_path: Path) -> None:
    precision = {"mode": "fp16", "init_scale": 2.0**120, "max_scale": 2.0**120}
    engine(tmp_path, Plain, precision=precision, epochs=1).fit()
    skipped = curve(tmp_path, "train/skipped_steps")
    assert skipped[0] == (1, 1)
    norms = dict(curve(tmp_path, "train/grad_norm"))
    assert 1 not in norms and all(value == value for value in norms.values())


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_norm(kind: torch.dtype) -> None:
    tensors = [torch.full((300,), 200.0, dtype=kind), torch.full((7, 3), 2.0, dtype=kind)]
    expected = (300 * 200.0**2 + 21 * 2.0**2) ** 0.5
    close = 1e-2 if kind is torch.bfloat16 else 1e-5
    assert norm([*tensors, torch.zeros(1)]).item() == pytest.approx(expected, rel=close)
    large = [torch.full((300,), 60000.0, dtype=kind)]
    assert norm(large).item() == pytest.approx(60000 * 300**0.5, rel=1e-2)
    assert norm([]).item() == 0


class Slow(Vectors):
    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Tensor]]:
        for batch in super().epoch(epoch, start):
            time.sleep(0.02)
            yield batch


class Waiting(Plain):
    def prepare_data(self) -> TrainingData:
        return Slow(self.train)


def test_the_time_that_a_step_waits_for_data_and_the_epoch(tmp_path: Path) -> None:
    engine(tmp_path / "slow", Waiting, log_every=4).fit()
    waits = curve(tmp_path / "slow", "train/data_wait_seconds")
    assert [step for step, _ in waits] == [4, 8, 10]
    assert all(seconds >= 0.02 for _, seconds in waits)
    epochs = curve(tmp_path / "slow", "train/epoch")
    assert epochs == [(4, 0.8), (8, 1.6), (10, 2.0)]
    for line in (tmp_path / "slow" / "metrics.jsonl").read_text().splitlines():
        assert not [name for name in json.loads(line) if name.startswith("gpu/")]


def test_the_memory_of_a_gpu_since_the_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's counters are a stub: the other tests have no GPU."""
    made = engine(tmp_path, Plain)
    resets = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 4 * 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    made.device = torch.device("cuda", 0)
    found = made.report._memory()
    made.train = replace(made.train, timing=settings(timing={"steps": 3}).timing)
    while_timed = made.report._memory()
    made.device = torch.device("cpu")
    assert found == {"memory_allocated_gib": 3.0, "memory_reserved_gib": 4.0}
    assert while_timed == made.report._memory() == {}
    assert resets == [torch.device("cuda", 0)]


def classes(count: int) -> dict[str, float]:
    train = settings(data={"name": "synthetic", "synthetic": {"classes": count, "test": 60}})
    made = Classification(train, World(), torch.device("cpu"))
    torch.manual_seed(0)
    logits, labels = torch.randn(60, count), torch.arange(60) % count
    sums = made.evaluate((torch.zeros(60), labels), {"model": lambda images: logits})
    best = [set(row.argsort(descending=True)[:5].tolist()) for row in logits]
    hits = sum(label in row for label, row in zip(labels.tolist(), best, strict=True))
    metrics = made.summarize({name: value.item() for name, value in sums.items()})
    if "accuracy_top5" in metrics:
        assert metrics["accuracy_top5"] == hits / 60
    return metrics


def test_top_5_with_at_least_6_classes() -> None:
    assert list(classes(5)) == ["accuracy", "loss"]
    assert list(classes(6)) == ["accuracy", "loss", "accuracy_top5"]
    assert 0 < classes(12)["accuracy_top5"] < 1


def test_normalisation_can_be_undone() -> None:
    pixels = torch.randint(256, (4, 3, 5, 5), dtype=torch.uint8)
    for normalization in (Normalization.imagenet(), Normalization.measure(pixels)):
        shown = normalization.undo(normalization(pixels))
        torch.testing.assert_close(shown, pixels / 255, rtol=0, atol=1e-5)


def test_inputs_are_shown_once(tmp_path: Path) -> None:
    data = {"name": "synthetic", "augment": {"crop": 2}}
    data["synthetic"] = {"train": 40, "test": 8, "image_size": 32}
    options = {"data": data, "batch_size": 20, "epochs": 2, "evaluate_every": 0}
    model = {"name": "lenet5"}
    fit_until(engine(tmp_path, Classification, **options, model=model), 1)
    (picture,) = (tmp_path / "inputs").iterdir()
    assert picture.name == "step-00000001.png"
    with Image.open(picture) as opened:
        pixels = np.asarray(opened)
    assert pixels.shape == (4 * 32 + 5 * 2, 4 * 32 + 5 * 2, 3)  # 16 images, and borders
    assert pixels.min() == 0 and 60 < pixels.mean() < 200
    picture.unlink()
    engine(tmp_path, Classification, attempt=2, **options, model=model).fit()
    assert list((tmp_path / "inputs").iterdir()) == []
