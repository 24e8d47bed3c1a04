"""Decodes image files to 8-bit RGB, and cuts out the part that is used.

This module does not import torch, because a loader process that did would take seconds to start and
half a gigabyte of memory.
"""

from __future__ import annotations

import math
import mmap
import sys
from random import Random
from typing import NamedTuple

from PIL import Image

from hpc_amp.data.errors import DataError

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""
CENTRE = 224 / 256
"""The part of the shorter side that an evaluation uses: resize to 256 and crop to 224, as usual."""

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged, too large, or in an unknown format."""

# In older versions of Pillow, images of mode I are 16-bit in these formats and 32-bit in others.
_FORMATS_OF_16_BITS = ("PNG", "PPM")
_BITS, _BLACK_OR_WHITE, _BLACK_IS_ZERO = 258, 262, 1  # two tags of a TIFF file, and a value
_LITTLE = sys.byteorder == "little"
# The positions of the upper 8 of 16 bits in the bytes of an image, by its mode.
_UPPER_BYTES = {
    "I;16": slice(1, None, 2),
    "I;16L": slice(1, None, 2),
    "I;16B": slice(0, None, 2),
    "I;16N": slice(int(_LITTLE), None, 2),
    "I": slice(1 if _LITTLE else 2, None, 4),
}


def open_rgb(path: str) -> Image.Image:
    """Open an image as 8-bit RGB. Of 16 bits, the upper 8 are used; an alpha channel is ignored.

    Raises DataError if the file cannot be read, or if the range of its numbers is not known.
    """
    image: Image.Image
    try:
        with Image.open(path) as image:
            if not _range_is_known(image):
                raise DataError(
                    f"the image {path} has mode {image.mode}, in which the numbers for black and "
                    "white are not defined; write it with 8 or 16 bits"
                )
            if image.mode in _UPPER_BYTES:
                upper = image.tobytes()[_UPPER_BYTES[image.mode]]
                return Image.frombytes("L", image.size, upper).convert("RGB")
            if "transparency" in image.info:
                # Otherwise, Pillow would warn about each palette with transparency.
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except UNREADABLE as error:
        raise DataError(f"the image {path} cannot be read: {error}") from error


def _range_is_known(image: Image.Image) -> bool:
    """Whether black and white are the same numbers in all images of this format and mode."""
    if image.mode == "I":
        return image.format in _FORMATS_OF_16_BITS
    if image.mode.startswith("I;16") and image.format == "TIFF":
        # Pillow does not scale 12 bits up, and does not invert 16 bits of which 0 is white. Only
        # images of this format have tags.
        tags = image.tag_v2  # type: ignore[attr-defined]
        return (tags.get(_BITS), tags.get(_BLACK_OR_WHITE)) == ((16,), _BLACK_IS_ZERO)
    return image.mode != "F"


def centre_box(width: int, height: int, part: float = 1.0) -> Box:
    """The central square whose side is `part` of the shorter side. All sizes are in pixels."""
    side = min(width, height) * part
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, random: Random) -> Box:
    """A random box with 8 % to 100 % of the area and an aspect ratio of 3:4 to 4:3, as in the
    training of Inception (Szegedy et al., 2015). If ten tries do not fit into the image, the
    central square."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            left, top = random.randint(0, width - box_width), random.randint(0, height - box_height)
            return left, top, left + box_width, top + box_height
    return centre_box(width, height)


def resize(image: Image.Image, side: int, box: Box) -> Image.Image:
    """The content of `box`, as a square of `side` pixels."""
    return image.resize((side, side), Image.Resampling.BILINEAR, box=box)


def look(path: str, side: int, seed: str, *, crop: bool, flip: bool) -> Image.Image:
    """The image in `path` as a square of `side` pixels.

    With `crop`, a random part of the image, and otherwise its centre; with `flip`, half of all
    seeds mirror it. Equal arguments give equal pixels. Raises DataError.
    """
    image = open_rgb(path)
    random = Random(seed)
    if crop:
        box = random_box(image.width, image.height, random)
    else:
        box = centre_box(image.width, image.height, CENTRE)
    image = resize(image, side, box)
    if flip and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


class PictureRequest(NamedTuple):
    """A request to decode images, each with the seed of its random changes.

    Their pixels are written one image after the other, from the byte `place` on, as rows of 8-bit
    RGB. `side`, `crop` and `flip` are those of `look`.
    """

    place: int
    side: int
    crop: bool
    flip: bool
    images: list[tuple[str, str]]


def decode(request: PictureRequest, memory: mmap.mmap) -> None:
    """Carry out a request. Raises DataError for an image that cannot be read."""
    begin = request.place
    for path, seed in request.images:
        image = look(path, request.side, seed, crop=request.crop, flip=request.flip)
        pixels = image.tobytes()
        memory[begin : begin + len(pixels)] = pixels
        begin += len(pixels)
