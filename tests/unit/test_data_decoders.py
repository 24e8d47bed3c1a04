"""The choice of what decodes image files, and what all decoders use of an image."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hpc_amp.config import schema
from hpc_amp.data.decode import resize
from hpc_amp.data.decoder_dali import DaliDecoder
from hpc_amp.data.decoders import PillowDecoder, View, pixels_of
from hpc_amp.data.prepare import choose_decoder
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WITHOUT = "DALI is not installed in the image or environment"


def choose(decoder: str, device: torch.device = CPU) -> Any:
    return choose_decoder(64, schema.Data(decoder=decoder, workers=0), World(), device)


@pytest.fixture
def without_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nvidia", "nvidia.dali.plugin.pytorch"):
        monkeypatch.setitem(sys.modules, module, None)


def dali_gives(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], Any]) -> None:
    """DALI is there and decodes, by Pillow, what `change` makes of the right pixels."""

    def run(self: DaliDecoder, jpegs: Sequence[Any]) -> torch.Tensor:
        pixels = []
        for jpeg in jpegs:
            part = Image.open(io.BytesIO(jpeg.content)).crop(jpeg.box)
            if jpeg.mirrored:
                part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels.append(resize(part, self.side).permute(1, 2, 0))
        return change(torch.stack(pixels))

    monkeypatch.setattr(DaliDecoder, "_run", run)


def test_without_a_gpu_the_choice_is_pillow() -> None:
    decoder = choose("auto")
    assert isinstance(decoder, PillowDecoder)
    assert decoder.name.startswith("Pillow 1")


@pytest.mark.usefixtures("without_dali")
def test_with_a_gpu_and_without_dali_it_is_pillow_and_is_told(
    logged: list[str],
) -> None:
    assert isinstance(choose("auto", GPU), PillowDecoder)
    assert f"Pillow decodes the images: {WITHOUT}" in "\n".join(logged)


@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("device", [CPU, GPU])
def test_asking_for_dali_where_it_is_not_ends_the_run(device: torch.device) -> None:
    with pytest.raises(DataError, match=rf"^train\.data\.decoder=dali: {WITHOUT} ") as raised:
        choose("dali", device)
    assert raised.value.exit_code == 2
    assert str(raised.value).endswith("; train.data.decoder=pillow works everywhere")


@pytest.mark.parametrize("device", [CPU, GPU])
def test_dali_is_taken_if_it_decodes_as_pillow_does(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    dali_gives(monkeypatch, lambda pixels: pixels)
    assert isinstance(choose("dali", device), DaliDecoder)
    assert isinstance(choose("auto", device), DaliDecoder if device is GPU else PillowDecoder)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pixels: torch.stack([pixels[0]] * 2),
        lambda pixels: pixels.flip(3),
        lambda pixels: pixels.transpose(1, 2),
        lambda pixels: pixels.roll(4, 2),
        lambda pixels: 0 * pixels,
    ],
    ids=["not mirrored", "blue is red", "on its side", "elsewhere", "black"],
)
def test_dali_is_not_taken_if_it_decodes_something_else(
    monkeypatch: pytest.MonkeyPatch, logged: list[str], wrong: Callable[..., Any]
) -> None:
    dali_gives(monkeypatch, wrong)
    assert isinstance(choose("auto", GPU), PillowDecoder)
    assert "DALI decodes a test image with other pixels, by " in "\n".join(logged)
    with pytest.raises(DataError, match=r"other pixels, by \d+\.\d levels of 255; "):
        choose("dali")


def test_nor_if_it_fails(monkeypatch: pytest.MonkeyPatch, logged: list[str]) -> None:
    def fails(pixels: torch.Tensor) -> torch.Tensor:
        raise TypeError("no\n  such argument")

    dali_gives(monkeypatch, fails)
    assert isinstance(choose("auto", GPU), PillowDecoder)
    assert "DALI cannot decode a test image: no such argument" in "\n".join(logged)


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_a_view_names_the_part_that_pillow_decodes(tmp_path: Path, crop: bool, flip: bool) -> None:
    path = str(tmp_path / "image.png")
    values = torch.randint(256, (70, 90, 3), generator=torch.Generator().manual_seed(0))
    image = Image.fromarray(values.byte().numpy())
    image.save(path)
    mirrored = 0
    for seed in (None, *"abcdefgh"):
        view = View(path, seed, crop, flip)
        box, mirror = view.part(90, 70)
        part = image.crop(box)
        if mirror:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert torch.equal(resize(part, 32), pixels_of(view, 32))
        mirrored += mirror
    assert (0 < mirrored < 8) is flip
