"""Small folders of images in the layouts of `hpc_amp.gan.data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.gan.data.training import Prepared


def evaluated(prepared: Prepared[Any]) -> int:
    """The number of samples that this rank evaluates."""
    return sum(map(len, prepared.evaluation()))


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> None:
    """An image of one colour. `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_map(path: Path, number: int, size: tuple[int, int] = (12, 8), mode: str = "L") -> None:
    """A map of one number, of the Pillow mode L, P or I;16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        image = Image.frombytes(mode, size, number.to_bytes(2, "little") * (size[0] * size[1]))
    else:
        image = Image.new(mode, size, number)
    if mode == "P":
        image.putpalette([200, 10, 30] * 256)
    image.save(path)


def write_coordinates(path: Path, width: int, height: int) -> Tensor:
    """An image whose red is the column and whose green is the row of each pixel, as uint8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack((columns, rows, torch.zeros_like(rows)), 2).to(torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return pixels


def colour_of(image: Tensor) -> tuple[int, ...]:
    """The colour of an image [3, H, W] from -1 to 1 that has one only."""
    values = ((image + 1) * 127.5).round().int().flatten(1)
    assert (values == values[:, :1]).all()
    return tuple(values[:, 0].tolist())
