"""The DCGAN task: networks, data, losses, resume, samples, and the distance of samples."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.dcgan import GAN, TRAIN, dcgan
from support.environment import REPOSITORY
from support.training import CPU, curve, engine, fit_until, settings
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import load_job
from hpc_amp.config.schema import Train
from hpc_amp.data.decode import to_pixels
from hpc_amp.data.gan import GanTraining, prepare_unlabelled, signed_images
from hpc_amp.distributed.world import World
from hpc_amp.errors import ConfigError
from hpc_amp.models.dcgan import Discriminator, Generator
from hpc_amp.models.weights import load_weights
from hpc_amp.tasks.base import DataError, ModelError, Networks
from hpc_amp.tasks.dcgan import Dcgan
from hpc_amp.tasks.frechet import FeatureNetwork, frechet_distance, moments
from hpc_amp.tasks.registry import build_task
from hpc_amp.train.engine import Engine
from hpc_amp.train.settings import SettingError, check_settings
from hpc_amp.train.state import weights_digest

EXAMPLE = REPOSITORY / "examples" / "dcgan"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On a busy machine, the threads of a small network wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_images_come_out_of_latent_vectors_and_logits_out_of_images(size: int, norm: str) -> None:
    generator = Generator(latent=5, channels=3, width=4, image_size=size, norm=norm)
    images = generator(torch.randn(2, 5))
    assert images.shape == (2, 3, size, size)
    assert images.abs().max() <= 1
    discriminator = Discriminator(channels=3, width=4, image_size=size, norm=norm)
    assert discriminator(images).shape == (2,)
    norms = nn.BatchNorm2d if norm == "batch" else nn.GroupNorm
    counts = [sum(isinstance(m, norms) for m in n.modules()) for n in (generator, discriminator)]
    assert counts == [size.bit_length() - 3, size.bit_length() - 4]


def test_the_widths_are_those_of_the_paper() -> None:
    generator = Generator(latent=100, channels=3, width=64, image_size=64)
    discriminator = Discriminator(channels=3, width=64, image_size=64)
    transposed = [m for m in generator.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [m.in_channels for m in transposed] == [100, 512, 256, 128, 64]
    plain = [m for m in discriminator.modules() if isinstance(m, nn.Conv2d)]
    assert [m.in_channels for m in plain] == [3, 64, 128, 256, 512]


def test_weights_are_named_as_in_the_well_known_example() -> None:
    """So that files made with it can be loaded."""

    def layers(network: nn.Module) -> list[str]:
        return [name.removesuffix(".weight") for name in network.state_dict() if "weight" in name]

    generator = Generator(latent=100, channels=3, width=8, image_size=64)
    assert layers(generator) == [f"main.{i}" for i in (0, 1, 3, 4, 6, 7, 9, 10, 12)]
    discriminator = Discriminator(channels=3, width=8, image_size=64)
    assert layers(discriminator) == [f"main.{i}" for i in (0, 2, 3, 5, 6, 8, 9, 11)]


def test_first_weights_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    for network in (
        Generator(latent=100, channels=3, width=32, image_size=32),
        Discriminator(channels=3, width=32, image_size=32),
    ):
        for layer in network.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
                assert layer.weight.mean().item() == pytest.approx(0, abs=0.002)
            elif isinstance(layer, nn.BatchNorm2d):
                assert 0.01 < layer.weight.std() < 0.03
                assert layer.weight.mean().item() == pytest.approx(1, abs=0.01)
                assert not layer.bias.any()


# -- weights from files ---------------------------------------------------------------------------


def test_a_training_starts_with_given_weights(tmp_path: Path) -> None:
    before = dcgan(tmp_path / "before", epochs=1)
    before.fit()
    checkpoint = tmp_path / "before" / "checkpoints" / "step-00000004" / "networks.pt"
    under_ddp = tmp_path / "netD.pth"
    state = before.networks["discriminator"].state_dict()
    torch.save({f"module.{name}": value for name, value in state.items()}, under_ddp)
    files = {"generator_weights": str(checkpoint), "discriminator_weights": str(under_ddp)}
    after = dcgan(tmp_path / "after", gan=files, seed=1)
    assert weights_digest(after.networks) == weights_digest(before.networks)
    other = dcgan(tmp_path / "other", seed=1)
    assert weights_digest(other.networks) != weights_digest(before.networks)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: .*No such file"),
        (b"", "cannot be read"),
        (b"no weights", "cannot be read"),
        ([1, 2], "holds no weights, but a list"),
        ({"main.0.weight": torch.zeros(1)}, "are of another generator: .*size mismatch"),
        ({"main.0.weight": "text"}, "are of another generator"),
    ],
)
def test_weights_that_do_not_fit_are_one_line(content: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    network = Generator(latent=5, channels=3, width=4, image_size=16)
    with pytest.raises(ModelError, match=message) as caught:
        load_weights(network, str(file), "generator")
    assert "\n" not in str(caught.value)


# -- data -----------------------------------------------------------------------------------------


def data(world: World | None = None, **train: Any) -> GanTraining:
    task = build_task(settings(**{**TRAIN, "gan": GAN, **train}), world or World(), CPU)
    made = task.prepare_data()
    assert isinstance(made, GanTraining)
    return made


def test_images_are_the_pixels_from_minus_one_to_one() -> None:
    gan = {**GAN, "image_size": 16}
    synthetic = {"train": 64, "test": 9, "image_size": 16}
    made = data(
        gan=gan, data={"name": "synthetic", "synthetic": synthetic, "augment": {"flip": False}}
    )
    images = torch.cat([images for parts in made.epoch(0) for images, _ in parts])
    assert images.shape == (64, 3, 16, 16)
    stored = made.labelled.images.pixels  # type: ignore[attr-defined]
    expected = stored.float() / 127.5 - 1
    for image in images:
        assert (expected == image).all(3).all(2).all(1).sum() == 1, "exactly"


def test_images_are_scaled_and_neither_cropped_nor_blanked() -> None:
    augment = {"crop": 4, "cutout": 8, "flip": False}
    made = data(data={**TRAIN["data"], "augment": augment})
    (images, _), *_ = next(made.epoch(0))
    assert images.shape == (16, 3, 16, 16)
    stored = made.labelled.images.pixels.float()  # type: ignore[attr-defined]
    scaled = F.interpolate(stored, (16, 16), mode="bilinear", antialias=True) / 127.5 - 1
    for image in images:
        assert (scaled - image).abs().amax((1, 2, 3)).min() < 1e-5


def test_latent_vectors_belong_to_steps_and_not_to_ranks() -> None:
    alone = [torch.cat([latents for _, latents in parts]) for parts in data().epoch(1)]
    assert len(alone) == 4
    assert alone[0].shape == (16, GAN["latent"])
    for size, accumulate in ((2, 1), (2, 4), (4, 2)):
        ranks = [data(World(rank=r, size=size), accumulate=accumulate) for r in range(size)]
        shares = zip(*(rank.epoch(1, start=1) for rank in ranks), strict=True)
        for step, per_rank in enumerate(shares, 1):
            assert [len(parts) for parts in per_rank] == [accumulate] * size
            together = torch.cat([latents for parts in per_rank for _, latents in parts])
            assert torch.equal(together, alone[step])
    everything = torch.cat([*alone, *(z for parts in data().epoch(0) for _, z in parts)])
    assert len(everything.unique(dim=0)) == 8 * 16
    other = next(data(seed=1).epoch(1))[0][1]
    assert not torch.equal(other, alone[0])


@pytest.mark.parametrize("in_memory", [True, False])
def test_folders_of_images_are_brought_to_the_size(in_memory: bool, tmp_path: Path) -> None:
    for number, name in enumerate(("train", "test")):
        folder = tmp_path / name / "all"
        folder.mkdir(parents=True)
        for shade in range(8):
            Image.new("RGB", (30, 20), (20 * shade + number,) * 3).save(folder / f"{shade}.png")
    config = {"name": "imagefolder", "root": str(tmp_path), "in_memory": in_memory, "workers": 0}
    made = data(data=config, batch_size=8)
    ((images, latents),) = next(made.epoch(0))
    assert (images.shape, latents.shape) == ((8, 3, 16, 16), (8, GAN["latent"]))
    shades = images.mean((1, 2, 3)).sort().values
    assert torch.allclose(shades, torch.arange(0, 160, 20) / 127.5 - 1, atol=1e-5)


def test_a_side_that_is_no_power_of_two_is_refused() -> None:
    for side in (16, 32, 256):
        check_settings(settings(gan={"image_size": side}), World())
    for side in (8, 48, 0, -16):
        with pytest.raises(SettingError, match=f"image_size: {side} is not a power of two"):
            check_settings(settings(gan={"image_size": side}), World())


def weights(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_a_training_is_the_hand_written_loop(mode: str, tmp_path: Path) -> None:
    """Of the paper, with fakes that are made once, two optimizers, three losses, and under fp16 a
    scale for each of them."""
    scale = 1024.0
    made = dcgan(tmp_path, precision={"mode": mode, "init_scale": scale}, epochs=2)
    generator, discriminator = copy.deepcopy(list(made.networks.values()))
    first, second = (
        torch.optim.Adam(network.parameters(), lr=GAN["lr"], betas=(0.5, 0.999))
        for network in (discriminator, generator)
    )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode)

    def cast() -> contextlib.AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()

    def step(optimizer: torch.optim.Optimizer, *losses: Tensor) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        parts = []
        for loss in losses:
            parts.append(torch.autograd.grad(loss * scale, parameters, retain_graph=True))
        for parameter, *gradients in zip(parameters, *parts, strict=True):
            parameter.grad = torch.stack([gradient / scale for gradient in gradients]).sum(0)
        optimizer.step()

    def loss(logits: Tensor, label: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            logits.float(), torch.full_like(logits, label).float()
        )

    for epoch in range(2):
        for ((images, latents),) in made.data.epoch(epoch):
            with cast():
                fakes = generator(latents)
                real = loss(discriminator(images), 1.0)
                fake = loss(discriminator(fakes.detach()), 0.0)
            step(first, real, fake)
            with cast():
                fooled = loss(discriminator(fakes), 1.0)
            step(second, fooled)
    made.fit()
    assert made.report.skipped_steps() == 0
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if mode == "fp32" else {"rtol": 1e-3, "atol": 1e-4}
    for network, expected in zip(made.networks.values(), (generator, discriminator), strict=True):
        torch.testing.assert_close(weights(network), weights(expected), **tolerance)
    for name in ("d_real", "d_fake", "g"):
        assert len(curve(tmp_path, f"train/{name}")) == 8


def test_each_phase_changes_one_network(tmp_path: Path) -> None:
    made = dcgan(tmp_path)
    batch = next(made.data.epoch(0))
    for update in made.updates:
        before = {name: weights_digest({name: n}) for name, n in made.networks.items()}
        assert update.run(batch, lambda: None)
        after = {name: weights_digest({name: n}) for name, n in made.networks.items()}
        changed = [name for name in before if before[name] != after[name]]
        assert changed == list(update.phase.networks)
    gradients = [p.grad for p in made.networks["discriminator"].parameters()]
    discriminator = [g.clone() for g in gradients if g is not None]
    assert len(discriminator) == len(gradients)
    made.updates[1].run(batch, lambda: None)
    now = [p.grad for p in made.networks["discriminator"].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(discriminator, now, strict=True)), (
        "no work in vain"
    )
    assert all(p.requires_grad for p in made.networks["discriminator"].parameters())


def test_what_the_discriminator_thinks_is_a_probability(tmp_path: Path) -> None:
    made = dcgan(tmp_path, epochs=1)
    made.fit()
    judged = made.task.judged  # type: ignore[attr-defined]
    assert set(judged) == {"d_real", "d_fake", "g"}
    for name, sign in (("d_real", 1), ("d_fake", -1), ("g", 1)):
        assert 0 < judged[name] < 1
        # By Jensen's inequality.
        least = -(judged[name] if sign > 0 else 1 - judged[name]).log().item()
        assert curve(tmp_path, f"train/{name}")[-1][1] >= least - 1e-6


def test_accumulation_is_the_same_update(tmp_path: Path) -> None:
    ends = []
    for accumulate in (1, 4):
        made = dcgan(tmp_path / str(accumulate), accumulate=accumulate, gan={"norm": "group"})
        made.fit()
        ends.append(torch.cat([weights(network) for network in made.networks.values()]))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


# -- resume and samples ---------------------------------------------------------------------------

# Overflows at once, and again each time that a scale has grown back.
EVERYTHING: dict[str, Any] = {
    "precision": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
    "ema": 0.9,
    "log_every": 3,
    "epochs": 5,
}


def scales(made: Engine) -> dict[str, dict[str, Any]]:
    return {n: s.state_dict() for update in made.updates for n, s in update.scalers.items()}


def test_a_resume_is_bit_exact(tmp_path: Path) -> None:
    """In the middle of epochs and of logging intervals, with overflows before and after."""
    whole = dcgan(tmp_path / "whole", **EVERYTHING)
    whole.fit()
    assert len({state["scale"] for state in scales(whole).values()}) > 1, "scales of their own"
    skipped = []
    for attempt, stop in enumerate((3, 6, 13), 1):
        part = dcgan(tmp_path / "parts", attempt=attempt, **EVERYTHING)
        fit_until(part, stop)
        skipped.append(part.report.skipped_steps())
        folder = tmp_path / "parts" / "checkpoints" / f"step-{stop:08d}"
        saved = json.loads((folder / "trainer.json").read_text())["scalers"]
        assert {n: s for phase in saved.values() for n, s in phase.items()} == scales(part)
    last = dcgan(tmp_path / "parts", attempt=4, **EVERYTHING)
    assert last.step == 13
    last.fit()
    assert 0 < skipped[0] < skipped[-1] < last.report.skipped_steps()
    assert weights_digest(last.networks) == weights_digest(whole.networks)
    assert scales(last) == scales(whole)
    for name in ("train/d_real", "train/d_fake", "train/g", "eval/frechet_small"):
        assert curve(tmp_path / "parts", name) == curve(tmp_path / "whole", name)
    pictures = [sorted((tmp_path / run / "samples").iterdir()) for run in ("whole", "parts")]
    assert [path.name for path in pictures[1]] == [path.name for path in pictures[0]]
    assert [p.read_bytes() for p in pictures[1]] == [p.read_bytes() for p in pictures[0]]


def test_samples_are_written_to_disk_and_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wider = {"generator_width": 8, "discriminator_width": 8, "lr": 0.003}
    made = dcgan(tmp_path, epochs=20, evaluate_every=10, log_every=100, gan=wider)
    made.fit()
    made.tracker.close()
    names = [path.name for path in sorted((tmp_path / "samples").iterdir())]
    assert names == ["step-00000040.png", "step-00000080.png"]
    with torch.no_grad():
        images = made.task.pictures({name: n.eval() for name, n in made.networks.items()})
    assert images is not None and images.shape == (9, 3, 16, 16)
    with Image.open(tmp_path / "samples" / names[1]) as picture:
        assert picture.size == (3 * 18 + 2, 3 * 18 + 2), "three in a row, framed"
        last = to_pixels(picture.crop((38, 38, 54, 54)))
    assert (last - images[8] * 255).abs().max() <= 1
    assert (images[0] - images[8]).abs().max() > 0.05
    board = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0})
    board.Reload()
    assert [event.step for event in board.Images("samples")] == [40, 80]


def test_a_task_without_pictures_has_no_samples(tmp_path: Path) -> None:
    engine(tmp_path).fit()
    assert not (tmp_path / "samples").exists()


# -- number formats -------------------------------------------------------------------------------

TINY: dict[str, dict[str, Any]] = {
    "classification": {
        "model": {"name": "resnet8", "width": 4},
        "data": {"name": "synthetic", "synthetic": {"train": 32, "test": 9, "image_size": 16}},
    },
    "dcgan": {**TRAIN, "gan": GAN},
}
"""A configuration of each task."""


class Products(TorchDispatchMode):
    """Notes the number formats of all convolutions and matrix products."""

    KINDS = ("convolution", "linear", "mm", "bmm", "baddbmm", "addmm", "dot_product_attention")

    def __init__(self) -> None:
        super().__init__()
        self.formats: list[torch.dtype] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__.endswith(self.KINDS):
            inputs = [a for a in args if isinstance(a, Tensor)]
            self.formats += [t.dtype for t in (*inputs, result) if t.is_floating_point()]
        return result


def watch_forwards(networks: Networks) -> dict[str, Products]:
    """Note what every forward pass of every network computes in."""
    seen = {}
    for name, network in networks.items():
        seen[name] = products = Products()
        network.register_forward_pre_hook(
            lambda *_, products=products: products.__enter__() and None
        )
        network.register_forward_hook(
            lambda *_, products=products: products.__exit__(None, None, None), always_call=True
        )
    return seen


def task_names() -> tuple[str, ...]:
    return get_args(get_type_hints(Train)["task"])


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", task_names())
def test_autocast_covers_every_forward_pass_of_every_task(
    name: str, mode: str, tmp_path: Path
) -> None:
    """In training, in an evaluation, and for pictures."""
    config = {**TINY[name], "precision": {"mode": mode}, "batch_size": 16}
    task = type(build_task(settings(**config), World(), CPU))
    config.pop("task", None)
    made = engine(tmp_path, task, **config)
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[mode]
    seen = watch_forwards(made.networks)
    layers = {
        name: sum(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)) for m in n.modules())
        for name, n in made.networks.items()
    }
    made.train_step(next(made.data.epoch(0)))
    for network, products in seen.items():
        assert len(products.formats) >= 3 * layers[network], "inputs, weights and results"
        assert set(products.formats) == {expected}, network
        products.formats.clear()
    made.evaluate()
    assert any(products.formats for products in seen.values())
    for network, products in seen.items():
        assert set(products.formats) <= {expected}, network


def test_the_watch_sees_a_forward_pass_outside_autocast(tmp_path: Path) -> None:
    """The control for the test above."""
    made = dcgan(tmp_path, precision="bf16")
    seen = watch_forwards(made.networks)
    made.networks["generator"](torch.randn(2, GAN["latent"]))
    assert set(seen["generator"].formats) == {torch.float32}
    assert not seen["discriminator"].formats


# -- the distance of samples ----------------------------------------------------------------------


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
    wider = {"generator_width": 8, "discriminator_width": 8, "lr": 0.003, "evaluation_images": 200}
    made = dcgan(tmp_path, epochs=40, evaluate_every=4, log_every=100, gan=wider)
    made.fit()
    distances = [value for _, value in curve(tmp_path, "eval/frechet_small")]
    assert len(distances) == 10
    assert min(distances[-3:]) < 0.6 * distances[0]
    assert made.metrics == {"frechet_small": distances[-1]}


def test_images_that_are_no_numbers_have_no_distance() -> None:
    features = torch.randn(20, 3, dtype=torch.float64)
    real = moments(features)
    features[3, 1] = torch.nan
    assert torch.isnan(torch.tensor(frechet_distance(real, moments(features))))


@pytest.mark.parametrize("size", [2, 3])
def test_every_test_image_and_every_made_up_one_counts_once(size: int) -> None:
    def measure(world: World) -> Dcgan:
        task = Dcgan(settings(**{**TRAIN, "gan": GAN, "eval_batch_size": 10}), world, CPU)
        task.prepare_data()
        torch.manual_seed(0)
        networks = {name: n.eval() for name, n in task.build_networks().items()}
        with torch.no_grad():
            for batch in task.evaluation_batches():
                task.evaluate(batch, networks)
        return task

    alone = measure(World())._moments
    ranks = [measure(World(rank=rank, size=size))._moments for rank in range(size)]
    assert (alone["real"][0, 0], alone["made"][0, 0]) == (37, 50)
    for kind, expected in alone.items():
        torch.testing.assert_close(sum(rank[kind] for rank in ranks), expected)


# -- the example with the flags of main_amp.py ----------------------------------------------------


def main_amp(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Train:
    """The settings that it makes of flags."""
    monkeypatch.setattr("sys.argv", ["main_amp.py", *flags])
    spec = importlib.util.spec_from_file_location("main_amp", EXAMPLE / "main_amp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.settings(module.parse())


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plain = main_amp(monkeypatch, "--device", "cpu")
    assert (plain.task, plain.data.name, plain.seed) == ("dcgan", "synthetic", 2809)
    assert (plain.batch_size, plain.epochs, plain.max_steps) == (64, 25, None)
    assert (plain.gan.image_size, plain.gan.latent, plain.gan.lr) == (64, 100, 2e-4)
    assert plain.gan.betas == (0.5, 0.999)
    assert plain.precision.mode == "fp32", "no fp16 on a CPU without being asked"
    flags = "--dataset cifar10 --dataroot d --workers 3 --batchSize 8 --imageSize 32 --nz 7 --ngf 5"
    flags += " --ndf 6 --niter 2 --lr 0.1 --beta1 0.25 --netG g.pt --netD d.pt --manualSeed 4"
    flags += " --opt_level O1 --device cpu --dry-run"
    made = main_amp(monkeypatch, *flags.split())
    assert (made.data.name, made.data.root, made.data.workers) == ("cifar10", "d", 3)
    assert (made.batch_size, made.epochs, made.max_steps, made.seed) == (8, 2, 1, 4)
    gan = made.gan
    assert (gan.image_size, gan.latent, gan.lr, gan.betas) == (32, 7, 0.1, (0.25, 0.999))
    assert (gan.generator_width, gan.discriminator_width) == (5, 6)
    assert (gan.generator_weights, gan.discriminator_weights) == ("g.pt", "d.pt")
    assert made.precision.mode == "fp16"
    assert main_amp(monkeypatch, "--precision", "bf16").precision.mode == "bf16"
    check_settings(plain, World())
    check_settings(made, World())


@pytest.mark.parametrize(
    ("dataset", "samples"), [("lsun", 3), ("folder", 6), ("lfw", 6), ("imagenet", 3)]
)
def test_the_example_reads_folders(
    dataset: str, samples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LSUN's division into training and test images, ImageNet's, and classes alone."""
    names = {"imagenet": ("train/a", "val/a")}.get(dataset, ("tower_train", "tower_val"))
    for name in names:
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for shade in range(3):
            Image.new("RGB", (20, 24), (60 * shade,) * 3).save(folder / f"{shade}.png")
    flags = ["--dataset", dataset, "--classes", "tower", "--dataroot", str(tmp_path / "images")]
    for _ in ("at first", "on a resume"):
        train = main_amp(
            monkeypatch, *flags, "--imageSize", "16", "--batchSize", "3", "--workers", "0",
            "--outf", str(tmp_path / "out"),
        )  # fmt: skip
        task = build_task(train, World(), CPU)
        assert task.prepare_data().samples == samples
        real = [images for kind, images in task.evaluation_batches() if kind == "real"]
        assert torch.cat(real).shape == (samples, 3, 16, 16)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--imageSize", "48", "--dry-run"], "image_size: 48 is not a power of two"),
        (["--dataset", "lfw", "--dataroot", "nowhere"], "--dataroot: there is no folder"),
    ],
)
def test_wrong_flags_are_one_line(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SettingError, DataError), match=message):
        check_settings(main_amp(monkeypatch, *flags), World())


def test_more_gpus_than_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit) as caught:
        main_amp(monkeypatch, "--ngpu", "2")
    assert caught.value.code == 2
    assert "start it with torchrun --nproc-per-node 2" in capsys.readouterr().err


# -- job files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["configs/dcgan.yaml", "examples/dcgan/job.yaml"])
def test_the_job_files_are_valid(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    check_job(load_job(Path(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: dcgan\n  model: resnet8", "train.model: dcgan does not use it; set train.gan"),
        ("task: dcgan\n  optimizer: {lr: 1}", "train.optimizer: dcgan does not use it"),
        ("task: dcgan\n  label_smoothing: 0.1", "train.label_smoothing: dcgan does not use it"),
        ("gan: {lr: 1}", "train.gan: classification does not use it; add task: dcgan"),
        ("task: dcgan\n  gan: {image_size: 40}", "40 is not a power of two from 16 on"),
        ("task: dcgan\n  batch_size: 9\njob: {gpus_per_node: 2}", "9 does not divide by world"),
    ],
)
def test_settings_of_another_task_are_refused(text: str, message: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\ntrain:\n  {text}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_job(load_job(job))
