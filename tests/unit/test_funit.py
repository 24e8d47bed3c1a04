"""The tasks of few-shot translation: networks, losses, metrics, resume, number formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.funit import NAMES, few_shot
from support.gan_checks import check_number_formats, check_phases, check_resume
from support.training import CPU, curve
from torch import Tensor, nn

from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import FeatureNetwork
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.layers import initialize
from hpc_amp.tasks.coco_funit.config import CocoFunitNetworks
from hpc_amp.tasks.coco_funit.networks import ContentConditionedStyle
from hpc_amp.tasks.funit.config import FunitNetworks
from hpc_amp.tasks.funit.metrics import NearestClass
from hpc_amp.tasks.funit.networks import Generator, StyleEncoder
from hpc_amp.train.engine import Engine

LOSSES = ("d", "r1", "gan", "features", "reconstruction")


pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


SMALL: dict[str, Any] = {
    "width": 4,
    "content_halvings": 2,
    "style_halvings": 2,
    "style_size": 4,
    "mlp_width": 8,
}


def make_generator(name: str) -> Generator:
    if name == "funit":
        config = FunitNetworks(**SMALL)
        style: nn.Module = StyleEncoder(config)
    else:
        config = conditioned = CocoFunitNetworks(**SMALL, bias_size=5)
        style = ContentConditionedStyle(conditioned)
    generator = Generator(config, style)
    initialize(generator, "kaiming")
    return generator


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_generator_takes_any_number_of_references(name: str) -> None:
    generator = make_generator(name)
    content, style = torch.randn(2, 3, 16, 24), torch.randn(2, 4, 3, 16, 24)
    with torch.no_grad():
        made = generator.translate(content, style)
        assert made.shape == content.shape and made.abs().max() <= 1
        torch.testing.assert_close(generator.translate(content, style[:, [2, 0, 3, 1]]), made)
        one = generator.translate(content, style[:, :1])
        torch.testing.assert_close(generator.translate(content, style[:, [0, 0, 0]]), one)
        assert (made - one).abs().max() > 1e-4
        both = generator(content, style)
        torch.testing.assert_close(both["translation"], made)
        own = generator.translate(content, content[:, None])
        torch.testing.assert_close(both["reconstruction"], own)


@pytest.mark.parametrize("name", NAMES)
def test_only_coco_funit_has_a_style_that_depends_on_the_content(name: str) -> None:
    generator = make_generator(name)
    content, references = torch.randn(2, 3, 16, 16), torch.randn(2, 2, 3, 16, 16)
    with torch.no_grad():
        layout = generator.content(content)
        (code,) = generator.style(layout, [references])
        (other,) = generator.style(layout.flip(0), [references])
    assert code.shape == (2, 4)
    assert torch.equal(code, other) == (name == "funit")


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_of_a_generator_get_a_gradient(name: str) -> None:
    """DDP waits for each of them."""
    generator = make_generator(name)
    made = generator(torch.randn(2, 3, 16, 16), torch.randn(2, 1, 3, 16, 16))
    (made["translation"].sum() + made["reconstruction"].square().sum()).backward()
    assert all(parameter.grad is not None for parameter in generator.parameters())


# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_each_phase_moves_its_network(name: str, tmp_path: Path) -> None:
    check_phases(few_shot(tmp_path, name))


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_convolutions_are_half_and_losses_fp32(name: str, mode: str, tmp_path: Path) -> None:
    made = few_shot(tmp_path, name, precision=mode, adversarial={"r1": 0.0})
    check_number_formats(made, mode)


def test_the_feature_matching_loss_compares_with_the_mean_of_all_references(
    tmp_path: Path,
) -> None:
    made = few_shot(tmp_path)
    (batch,) = next(made.data.epoch(0))
    (losses,) = made.task.losses("generator", batch, made.networks)
    generator, discriminator = made.networks["generator"], made.networks["discriminator"]
    with torch.no_grad():
        translation = generator(batch.content, batch.style)["translation"]
        found = discriminator(translation, batch.style_class)[1]
        wanted = [discriminator(batch.style[:, k], batch.style_class)[1] for k in range(2)]
    expected = (found - torch.stack(wanted).mean(0)).abs().mean()
    torch.testing.assert_close(losses["features"], expected, rtol=1e-4, atol=1e-6)


def test_losses_without_weight_are_not_computed(tmp_path: Path) -> None:
    made = few_shot(
        tmp_path,
        epochs=1,
        funit={"features_weight": 0.0, "reconstruction_weight": 0.0},
        adversarial={"r1": 0.0},
        max_steps=1,
    )
    made.fit()
    assert curve(tmp_path, "train/d") and curve(tmp_path, "train/gan")
    assert not any(curve(tmp_path, f"train/{name}") for name in LOSSES if name not in ("d", "gan"))


# -- resume ---------------------------------------------------------------------------------------

STARTS = {"funit": (16, 2.0**15), "coco_funit": (8, 2.0**14)}
"""Sizes of the images, and first loss scales, of which some overflow and some do not."""


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_is_bit_exact(name: str, tmp_path: Path) -> None:
    """In the middle of an epoch and of a logging interval, under fp16 with overflows."""
    metrics = ("eval/frechet_random", "eval/nearest_class", "eval/truth_l1")
    curves = [*(f"train/{loss}" for loss in LOSSES), *metrics]

    size, scale = STARTS[name]
    two_steps_an_epoch = {"classes": 7, "train": 4, "test": 4}

    def make(folder: Path, attempt: int) -> Engine:
        return few_shot(
            folder,
            name,
            attempt=attempt,
            ema=0.9,
            log_every=2,
            epochs=2,
            images={"image_size": [size], "synthetic": two_steps_an_epoch},
            precision={"mode": "fp16", "init_scale": scale, "growth_interval": 3},
        )

    check_resume(make, tmp_path, (1, 3), curves)


# -- metrics --------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """A generator without weights, for the metrics."""

    def __init__(self, images: Iterator[Tensor]) -> None:
        super().__init__()
        self.images = images

    def forward(self, content: Tensor, style: Tensor, reconstruct: bool) -> dict[str, Tensor]:
        return {"translation": next(self.images)}


def metrics_of(made: Engine, kind: str) -> dict[str, float]:
    batches = list(made.task.evaluation_batches())
    images = {
        "truth": [batch.truth for batch in batches],
        "reference": [batch.style[:, 0] for batch in batches],
        "content": [batch.content for batch in batches],
    }
    generator = Fixed(iter(images[kind]))
    sums: dict[str, float] = {}
    for batch in batches:
        for name, value in made.task.evaluate(batch, {"generator": generator}).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    assert sums["images"] == 12
    return made.task.summarize(sums)


def test_metrics_tell_the_truth_from_trivial_generators(tmp_path: Path) -> None:
    made = few_shot(tmp_path, images={"synthetic": {"classes": 7, "train": 8, "test": 4}})
    truth, reference, content = (metrics_of(made, k) for k in ("truth", "reference", "content"))
    assert truth["truth_l1"] == 0
    assert reference["frechet_random"] == pytest.approx(0, abs=1e-6)
    assert reference["truth_l1"] > 0.1
    assert content["truth_l1"] > reference["truth_l1"]
    assert truth["nearest_class"] > content["nearest_class"] + 0.3
    assert truth["frechet_random"] < 0.5 * content["frechet_random"]


def test_the_nearest_class_is_that_of_the_mean_features() -> None:
    images = torch.rand(9, 3, 16, 16) * 2 - 1
    classes = torch.tensor([0, 1, 2] * 3)
    features = FeatureNetwork(3)(images)
    centres = torch.stack([features[classes == number].mean(0) for number in range(3)])
    made = images.roll(1, 0)
    nearest = torch.cdist(FeatureNetwork(3)(made), centres).argmin(1)
    metric = NearestClass(3, World(), CPU)
    for part in (slice(0, 4), slice(4, 9)):
        metric.add(images[part], made[part], classes[part])
    assert metric.share() == pytest.approx((nearest == classes).double().mean().item())
    metric.begin()
    metric.add(images, images, classes)
    assert metric.share() >= 7 / 9, "each image is a third of its class's mean"


def test_a_picture_has_a_row_for_each_unseen_class(tmp_path: Path) -> None:
    """Content, reference, translation and truth."""
    made = few_shot(tmp_path, evaluation={"pictures": 2})
    made.evaluate()
    with torch.no_grad():
        pictures = made.task.pictures(made.networks)
    assert pictures is not None and pictures.shape == (2, 3, 16, 4 * 16)
    shown = {}
    for batch in made.task.evaluation_batches():
        for number, label in enumerate(batch.style_class.tolist()):
            rows = batch.content[number], batch.style[number, 0], batch.truth[number]
            shown.setdefault(label, rows)
    for picture, rows in zip(pictures, list(shown.values())[:2], strict=True):
        for place, image in zip((0, 1, 3), rows, strict=True):
            part = picture[:, :, 16 * place : 16 * (place + 1)]
            torch.testing.assert_close(part, image / 2 + 0.5, atol=1e-6, rtol=0)


# -- use ------------------------------------------------------------------------------------------


def test_files_are_translated_into_the_class_of_reference_files(tmp_path: Path) -> None:
    """Without the training data; in batches or one by one."""
    made = few_shot(tmp_path / "run", "coco_funit")
    task = type(made.task)(made.train, World(), CPU)
    networks = task.generation_networks()
    assert list(networks) == ["generator"]
    networks["generator"].load_state_dict(made.networks["generator"].state_dict())
    names = ["a.png", "b.png", "c.png", "style 1.png", "style 2.png"]
    files = [tmp_path / name for name in names]
    for number, file in enumerate(files):
        pixels = torch.randint(256, (20, 24, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
    request = Request(tmp_path, files[:3], style=tuple(files[3:]), batch_size=2)
    with torch.no_grad():
        found = dict(task.generate(request, networks))
        content = read_images(files[:3], made.train.images, CPU)
        style = read_images(files[3:], made.train.images, CPU).expand(3, 2, 3, 16, 16)
        expected = made.networks["generator"].translate(content, style)
    assert list(found) == files[:3]
    torch.testing.assert_close(torch.stack(list(found.values())), expected, rtol=1e-4, atol=1e-5)
