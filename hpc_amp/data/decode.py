"""Image files as uint8 tensors of one size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import Box, Location, centre_box, open_part, open_rgb, random_box

CENTRE = 224 / 256
"""The part of the shorter side that an evaluation uses: resize to 256 and crop to 224, as usual."""

# This kernel of torch takes half the time of Pillow's. Without AVX2, torch has a slow one, which
# also starts threads of its own in each thread that calls it.
_TORCH_RESIZES_FAST = "AVX" in torch.backends.cpu.get_cpu_capability()


def to_pixels(image: Image.Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, 3).permute(2, 0, 1)


def resize(image: Image.Image, side: int) -> Tensor:
    """An RGB image as a square: uint8 [3, side, side]. Called in threads. Where it becomes smaller,
    a pixel is the average of those that it replaces."""
    if not _TORCH_RESIZES_FAST:
        return to_pixels(image.resize((side, side), Image.Resampling.BILINEAR))
    # In this order, torch sees that the channels of a pixel are neighbours in memory, and leaves
    # them so. Resizing and making a batch take half the time.
    pixels = to_pixels(image).permute(1, 2, 0)[None].permute(0, 3, 1, 2)
    return F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)[0]


def training_view(place: Location, seed: str, side: int, *, crop: bool, flip: bool) -> Tensor:
    """An image as a training sees it: uint8 [3, side, side].

    The part of the image and whether it is mirrored are those of `training_part`. Equal arguments
    give equal pixels. Raises DataError.
    """
    mirrored = False

    def choose(width: int, height: int) -> Box:
        nonlocal mirrored
        box, mirrored = training_part(width, height, seed, crop=crop, flip=flip)
        return box

    part = open_part(place, choose, needed=side)
    if mirrored:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return resize(part, side)


def training_part(
    width: int, height: int, seed: str, *, crop: bool, flip: bool
) -> tuple[Box, bool]:
    """The box that a training uses of an image of this size in pixels, and whether it is mirrored.
    With `crop`, a random box, and otherwise the centre; with `flip`, half of all seeds mirror it.
    """
    random = Random(seed)
    box = random_box(width, height, random) if crop else centre_box(width, height, CENTRE)
    return box, flip and random.random() < 0.5


def centre_view(place: Location, side: int, part: float = CENTRE) -> Tensor:
    """The central square of an image, whose side is `part` of the shorter side of the image: uint8
    [3, side, side]. Raises DataError."""
    return resize(open_part(place, lambda width, height: centre_box(width, height, part)), side)


def decode_all(images: Sequence[Location], height: int, width: int, *, scale: bool) -> Tensor:
    """Decode images in parallel threads. Returns uint8 [N, 3, height, width].

    With `scale`, the central square of each image is resized to that size. Otherwise, raises
    DataError for an image of another size.
    """
    pixels = torch.empty(len(images), 3, height, width, dtype=torch.uint8)

    def decode(first: int) -> None:
        for at in range(first, min(first + 64, len(images))):
            if scale:
                pixels[at] = centre_view(images[at], height, part=1.0)
                continue
            image = open_rgb(images[at])
            if image.size != (width, height):
                raise DataError(
                    f"the image {images[at]} has {image.width} x {image.height} pixels, but others "
                    f"have {width} x {height}: set data.image_size to resize all of them"
                )
            pixels[at] = to_pixels(image)

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as threads:
        list(threads.map(decode, range(0, len(images), 64)))
    return pixels
