"""What the DCGAN task is made of: networks, weights from files, data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.dcgan import GAN, TRAIN, dcgan
from support.training import CPU, settings
from torch import nn

from hpc_amp.distributed.world import World
from hpc_amp.models.weights import load_weights
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.dcgan.data import GanTraining
from hpc_amp.tasks.dcgan.networks import Discriminator, Generator
from hpc_amp.train.settings import SettingError, check_settings
from hpc_amp.train.state import weights_digest

pytestmark = pytest.mark.usefixtures("one_thread")


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
        ([1, 2], "holds a list instead of weights"),
        ({"main.0.weight": torch.zeros(1)}, "belong to another generator: .*size mismatch"),
        ({"main.0.weight": "text"}, "belong to another generator"),
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
