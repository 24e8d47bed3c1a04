"""The warning that the training of a GAN has collapsed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.dcgan import GAN, TRAIN
from support.environment import REPOSITORY
from support.paired import paired
from support.training import engine, fit_until
from torch import Tensor, nn

from hpc_amp.gan.collapse import CHANCE, CollapseWatch
from hpc_amp.gan.frechet import FeatureNetwork, moments, relative_spread
from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.tasks.dcgan.task import Dcgan
from hpc_amp.train.engine import Engine

# ---- the signs -----------------------------------------------------------------------------------


def watch() -> CollapseWatch:
    return CollapseWatch({"d": 2.0}, ("gan",))


def reports(
    seen: CollapseWatch, d: list[float], gan: list[float], every: int = 50
) -> list[tuple[int, str]]:
    """The steps and names of what `seen` says of reports, `every` steps apart."""
    return [
        (step, cause)
        for step, pair in zip(range(every, 10**6, every), zip(d, gan, strict=True), strict=False)
        for cause in seen.report(step, dict(zip(("d", "gan"), pair, strict=True)))
    ]


def wandering(count: int) -> list[float]:
    return [0.5 + 0.01 * math.sin(number) for number in range(count)]


def test_a_discriminator_that_wins_for_200_steps() -> None:
    found = reports(watch(), [1.0, *[0.001] * 5], wandering(6))
    assert found == [(300, "discriminator")]


def test_a_discriminator_that_loses_again_has_not_won() -> None:
    losses = [0.001, 0.001, 0.001, 0.001, 0.1] * 10
    assert reports(watch(), losses, wandering(50)) == []


def test_few_reports_say_little() -> None:
    """A report is the mean over the steps since the last one."""
    assert reports(watch(), [0.001] * 4, wandering(4), every=1000) == []


def test_all_losses_of_the_discriminator_count() -> None:
    """One that always says "real" has a loss of 0 for real images."""
    seen = CollapseWatch({"d_real": 0.69, "d_fake": 0.69}, ())
    for step in range(0, 1000, 50):
        assert seen.report(step, {"d_real": 0.0, "d_fake": 3.0}) == {}


def test_a_loss_that_does_not_change() -> None:
    assert reports(watch(), [1.0] * 11, [0.7] * 11)[0] == (550, "generator")
    assert reports(watch(), [1.0] * 50, wandering(50)) == []
    moves = [0.7 + 0.0004 * number for number in range(50)]
    assert reports(watch(), [1.0] * 50, moves) == [], "slowly, but it does"
    once = [0.7] * 8 + [0.71] + [0.7] * 8
    assert reports(watch(), [1.0] * 17, once) == []


def test_a_phase_that_does_not_run_says_nothing() -> None:
    seen = watch()
    for step in range(0, 1000, 50):
        losses = {"d": 0.001} if step % 100 else {"other": 0.0}
        found = seen.report(step, losses)
        assert bool(found) == (step >= 450 and step % 100 == 50), step


def test_images_that_are_alike_twice() -> None:
    seen = watch()
    spreads = {100: 0.0, 150: 0.0, 200: 0.001, 250: 0.5, 300: 0.002, 350: 0.001}
    found = {step: seen.evaluation(step, {"images": spread}) for step, spread in spreads.items()}
    assert [step for step, causes in found.items() if causes] == [350]
    assert "0.10% of that of real ones" in found[350]["images"]


def test_the_set_that_collapsed_is_named() -> None:
    seen = watch()
    for _ in range(2):
        found = seen.evaluation(500, {"a": 0.9, "b": 0.001})
    assert "nearly the same image of b from all inputs" in found["images"]
    assert set(seen.evaluation(500, {"a": 0.9, "b": math.nan})) == {"not finite"}


def test_test_images_that_are_all_the_same_are_told() -> None:
    found = watch().evaluation(10, {"images": math.inf})
    assert found["test images"].startswith("the test images are all the same, so `frechet_random`")
    found = watch().evaluation(10, {"a": 0.9, "b": math.inf})
    assert list(found) == ["test images"] and "images of b are" in found["test images"]


def test_one_test_image(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], logged: list[str]
) -> None:
    """It is told before the training, and the other metrics are measured."""
    one = {"synthetic": {"train": 8, "test": 1}}
    made = paired(tmp_path, "spade", images=one, epochs=1, checkpoint={"keep_best": 1})
    assert "there is one test image, so `frechet_random` is infinite" in "\n".join(logged)
    made.fit()
    assert made.metrics["frechet_random"] == math.inf
    assert math.isfinite(made.metrics["l1"]) and math.isfinite(made.metrics["psnr"])
    assert "WARNING: the test images are all the same" in capfd.readouterr().out


def test_the_spread_of_images() -> None:
    network = FeatureNetwork(3)
    stream = torch.Generator().manual_seed(0)
    real = torch.rand(64, 3, 16, 16, generator=stream) * 2 - 1
    of_real = moments(network(real))
    assert relative_spread(of_real, of_real) == pytest.approx(1)
    one = moments(network(real[:1].expand(64, -1, -1, -1)))
    assert relative_spread(of_real, one) == pytest.approx(0, abs=1e-9)
    assert relative_spread(one * 0 + moments(network(real[:1])), one) == math.inf
    assert math.isnan(relative_spread(of_real, one * math.nan))


# ---- trainings that go well ----------------------------------------------------------------------

RECORDS = {
    "gan-spade-small-2026-11-29.log": "hinge",
    "gan-pix2pixhd-small-2026-11-29.log": "lsgan",
    "munit-small-2026-11-29.log": "lsgan",
    "unit-small-2026-11-29.log": "lsgan",
    "few-shot-2026-11-29.log": "hinge",
    "vid2vid-small-2026-11-29.log": "lsgan",
    "fs-vid2vid-small-2026-11-30.log": "lsgan",
    "wc-vid2vid-small-2026-11-30.log": "lsgan",
}


@pytest.mark.parametrize("record", RECORDS)
def test_the_recorded_trainings_of_the_small_presets_are_no_collapse(record: str) -> None:
    text = (REPOSITORY / "benchmarks" / "records" / record).read_text()
    count = 0
    for part in re.split(r"^\$ ", text, flags=re.M):  # several trainings
        chance = CHANCE[RECORDS[record]]
        seen = CollapseWatch({"d": chance, "coarse_d": chance}, ("gan", "coarse_gan", "fine_gan"))
        for line in part.splitlines():
            step = re.search(r"  step (\d+)/", line)
            if step is not None:
                losses = {k: float(v) for k, v in re.findall(r"  (\w+) (-?[\d.]+)(?=  )", line)}
                assert seen.report(int(step[1]), losses) == {}, line
                count += "d" in losses or "coarse_d" in losses
    assert count > 8


# ---- trainings that collapse ---------------------------------------------------------------------


class OneImage(nn.Module):
    """Its weights count for nothing but the gradient."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.image = nn.Parameter(torch.zeros(channels, 16, 16))

    def forward(self, latents: Tensor) -> Tensor:
        return torch.tanh(self.image).expand(len(latents), -1, -1, -1)


class Collapsed(Dcgan):
    """A generator that makes one image, whatever it gets."""

    name: ClassVar[str] = "dcgan"

    def build_networks(self) -> dict[str, nn.Module]:
        return {**super().build_networks(), "generator": OneImage(self.data.channels)}


class Lost(Dcgan):
    """A discriminator that has won: its logits are far from 0, and have no gradient. Nothing is
    computed, because only the losses count."""

    name: ClassVar[str] = "dcgan"

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        values = {"g": 9.0} if phase == "generator" else {"d_real": 1e-4, "d_fake": 1e-4}
        for name, value in values.items():
            yield {name: sum(p.sum() for p in networks[phase].parameters()) * 0 + value}


def gan(folder: Path, task: type[Dcgan], epochs: int, **train: Any) -> Engine:
    plain = {**TRAIN, "evaluate_every": 10, "log_every": 20, "gan": GAN, **train}
    del plain["task"]
    made: Engine = engine(folder, task, epochs=epochs, **plain)
    return made


def warnings(said: str) -> list[str]:
    return [line.partition("WARNING: ")[2] for line in said.splitlines() if "WARNING: " in line]


def test_a_generator_of_one_image_is_noticed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the run is stopped and goes on, and in its summary."""
    fit_until(gan(tmp_path, Collapsed, 70), 250)
    found = warnings(capsys.readouterr().out)
    images = [text for text in found if "nearly the same image" in text]
    assert len(images) == 1
    assert images[0].startswith("at step 240, the generator makes nearly the same image from all")
    assert "0.00% of that of real ones" in images[0]
    last = gan(tmp_path, Collapsed, 70, attempt=2)
    last.fit()
    assert not [t for t in warnings(capsys.readouterr().out) if "nearly the same" in t]
    assert images[0] in last.report.summary()["warnings"]


def test_a_discriminator_that_won_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gan(tmp_path, Lost, 150, evaluate_every=0)
    made.fit()
    found = warnings(capsys.readouterr().out)
    assert [text.partition(",")[0] for text in found] == ["since step 20", "since step 20"]
    assert "`d_real` is 0.0001, and 0.69 if it guesses" in found[0]
    assert "the generator's loss `g` is 9 and does not change" in found[1]
    assert json.dumps(found) == json.dumps(made.report.summary()["warnings"])


def test_a_gan_that_trains_is_no_collapse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gan(tmp_path, Dcgan, 70).fit()
    assert warnings(capsys.readouterr().out) == []


def test_conditional_gans_are_watched(tmp_path: Path) -> None:
    """By the losses and the images of the model."""
    made = paired(tmp_path, "pix2pixhd", images={"synthetic": {"train": 8, "test": 8}}, epochs=3)
    made.fit()
    task: Any = made.task
    spread = task.spreads()["images"]
    assert 0 < spread < 10
    assert task._watch._chance == {"coarse_d": 0.25, "d": 0.25}
    assert set(task._watch._still) == {"coarse_gan", "fine_gan", "gan"}
    for step in range(0, 400, 20):
        found = task.concerns(step, {"d": 0.0})
    assert set(found) == {"discriminator"}
