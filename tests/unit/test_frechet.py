"""The distance of generated images from real ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.dcgan import GAN, TRAIN, dcgan
from support.training import CPU, curve, settings
from torch import Tensor

from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import FeatureNetwork, frechet_distance, moments, relative_spread
from hpc_amp.tasks.dcgan.data import prepare_unlabelled, signed_images
from hpc_amp.tasks.dcgan.task import Dcgan

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_distance_of_two_gaussians_is_the_closed_form() -> None:
    """For independent features: |m1 - m2|^2 plus the squared differences of the deviations."""
    stream = torch.Generator().manual_seed(0)
    plain = torch.randn(50_000, 4, generator=stream, dtype=torch.float64)
    plain = (plain - plain.mean(0)) @ torch.linalg.inv(
        torch.linalg.cholesky(torch.cov(plain.T, correction=0))
    ).T
    deviation, other = (torch.tensor(v, dtype=torch.float64) for v in ([1, 2, 3, 4], [2, 2, 1, 5]))
    mean = torch.tensor([1.0, -1, 0, 2], dtype=torch.float64)
    distance = frechet_distance(moments(plain * deviation), moments(plain * other + mean))
    expected = mean.square().sum() + (deviation - other).square().sum()
    assert distance == pytest.approx((expected / deviation.square().sum()).item(), rel=1e-9)


def test_moments_of_parts_add_up() -> None:
    features = torch.randn(101, 7, dtype=torch.float64)
    parts = sum(moments(part) for part in features.split((1, 40, 60)))
    torch.testing.assert_close(parts, moments(features))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 50, 1001])
def test_equal_images_have_no_distance(count: int) -> None:
    """Rounding leaves a little variance, which is positive or negative."""
    network = FeatureNetwork(3)
    images = torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one, made = moments(network(images[:1])) * count, moments(network(images))
    assert frechet_distance(one, made) == relative_spread(one, made) == math.inf
    assert relative_spread(made, one) == 0
    near = images[:2].clone()
    near[1] = near[0]
    near[1, 0, 3, 3] += 2 / 255  # one level of one pixel
    assert math.isfinite(frechet_distance(moments(network(near)), made))


def images_of(seed: int) -> Tensor:
    synthetic = {"train": 16, "test": 600, "image_size": 32}
    config = {"name": "synthetic", "synthetic": synthetic}
    train = settings(**{**TRAIN, "gan": {**GAN, "image_size": 32}, "data": config, "seed": seed})
    prepared = prepare_unlabelled(train, World(), CPU)
    normalization = prepared.training.normalization  # type: ignore[attr-defined]
    return torch.cat([signed_images(i, normalization, train) for i, _ in prepared.evaluation()])


def test_the_distance_grows_with_the_harm_done() -> None:
    """Two halves of one set are near each other, and images further away the more noise, blur or
    monotony they have."""
    features = FeatureNetwork(3)
    images = images_of(0)
    half, rest = images.chunk(2)
    real = moments(features(half))

    def distance(made: Tensor) -> float:
        return frechet_distance(real, moments(features(made)))

    noise = torch.rand(rest.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert distance(half) == pytest.approx(0, abs=1e-9)
    same = distance(rest)
    assert 0 < same < 0.1
    noisy = [distance(rest.lerp(noise, part)) for part in (0.1, 0.3, 1.0)]
    assert same < noisy[0] < noisy[1] < noisy[2]
    assert noisy[2] > 10 * same
    blurred = [distance(F.avg_pool2d(rest, side, 1, side // 2)) for side in (3, 7)]
    assert same < blurred[0] < blurred[1]
    few = [distance(rest[:count].repeat(300 // count, 1, 1, 1)) for count in (30, 3)]
    assert same < few[0] < few[1]


def test_a_training_lowers_the_distance(tmp_path: Path) -> None:
    """With each of 16 seeds, to 0.42 to 0.56 of what it was after the first steps, and
    to 0.81 without training. With a rate of 0.003, it came to 0.62 on one processor."""
    wider = {"generator_width": 8, "discriminator_width": 8, "lr": 0.0014, "evaluation_images": 200}
    made = dcgan(tmp_path, epochs=40, evaluate_every=4, log_every=100, gan=wider)
    made.fit()
    distances = [value for _, value in curve(tmp_path, "eval/frechet_random")]
    assert len(distances) == 10
    assert min(distances[-3:]) < 0.6 * distances[0]
    assert made.metrics == {"frechet_random": distances[-1]}


def test_images_that_are_no_numbers_have_no_distance() -> None:
    features = torch.randn(20, 3, dtype=torch.float64)
    real = moments(features)
    features[3, 1] = torch.nan
    assert torch.isnan(torch.tensor(frechet_distance(real, moments(features))))


@pytest.mark.parametrize("size", [2, 3])
def test_every_test_image_and_every_made_up_one_counts_once(size: int) -> None:
    def measure(world: World) -> dict[str, Tensor]:
        task = Dcgan(settings(**{**TRAIN, "gan": GAN, "eval_batch_size": 10}), world, CPU)
        task.prepare_data()
        torch.manual_seed(0)
        networks = {name: n.eval() for name, n in task.build_networks().items()}
        with torch.no_grad():
            for batch in task.evaluation_batches():
                task.evaluate(batch, networks)
        return dict(zip(("real", "made"), task._distances._moments, strict=True))

    alone = measure(World())
    ranks = [measure(World(rank=rank, size=size)) for rank in range(size)]
    assert (alone["real"][0, 0], alone["made"][0, 0]) == (37, 50)
    for kind, expected in alone.items():
        torch.testing.assert_close(sum(rank[kind] for rank in ranks), expected)
