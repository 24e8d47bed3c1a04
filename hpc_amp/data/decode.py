"""Image files to uint8 pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.tasks.base import DataError

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


def open_rgb(path: str) -> Image.Image:
    """The image in `path` as RGB. Raises DataError where it cannot be read."""
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise DataError(f"the image {path} cannot be read: {error}") from error


def to_pixels(image: Image.Image) -> Tensor:
    """`image` as uint8 [3, H, W]."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, 3).permute(2, 0, 1)


def centre_box(width: int, height: int, part: float = 1.0) -> Box:
    """The square in the middle whose side is `part` of the shorter side."""
    side = min(width, height) * part
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, random: Random) -> Box:
    """A box of 8 % to 100 % of the area and a ratio of 3:4 to 4:3, as in the training of Inception
    (Szegedy et al., 2015); the middle of the image where ten tries find none that fits."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left, top = random.randint(0, width - box_width), random.randint(0, height - box_height)
            return left, top, left + box_width, top + box_height
    return centre_box(width, height)


def resize(image: Image.Image, side: int, box: Box) -> Image.Image:
    """What is in `box`, as a square of `side` pixels."""
    return image.resize((side, side), Image.Resampling.BILINEAR, box=box)


def decode_all(paths: Sequence[str], height: int, width: int, *, scale: bool) -> Tensor:
    """All images as uint8 [N, 3, height, width], decoded in parallel threads.

    With `scale`, the middle square of each is brought to that size, else each must have it:
    raises DataError for one that does not.
    """
    pixels = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)

    def decode(first: int) -> None:
        for at in range(first, min(first + 64, len(paths))):
            image = open_rgb(paths[at])
            if scale:
                image = resize(image, height, centre_box(image.width, image.height))
            if image.size != (width, height):
                raise DataError(
                    f"the image {paths[at]} has {image.width} x {image.height} pixels and others "
                    f"{width} x {height}: set data.image_size to bring all to one size"
                )
            pixels[at] = to_pixels(image)

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as threads:
        list(threads.map(decode, range(0, len(paths), 64)))
    return pixels
