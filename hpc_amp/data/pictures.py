"""Image files to RGB of 8 bits, and the part of each that a training sees.

Nothing here imports torch: a loader process that does would take seconds to start, and half a
gigabyte.
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
"""Part of the shorter side that an evaluation sees: the usual resize to 256 and crop to 224."""

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged, too large or of a kind that it does not know."""

# Formats whose images of the mode I have 16 bits, in Pillow's older versions; the others' have 32.
_FORMATS_OF_16_BITS = ("PNG", "PPM")
_BITS, _BLACK_OR_WHITE, _BLACK_IS_ZERO = 258, 262, 1  # tags of a TIFF file, and a value
_LITTLE = sys.byteorder == "little"
# Where in the bytes of an image the upper ones of its 16 bits are.
_UPPER_BYTES = {
    "I;16": slice(1, None, 2),
    "I;16L": slice(1, None, 2),
    "I;16B": slice(0, None, 2),
    "I;16N": slice(int(_LITTLE), None, 2),
    "I": slice(1 if _LITTLE else 2, None, 4),
}


def open_rgb(path: str) -> Image.Image:
    """The image in `path` as RGB of 8 bits: of 16 bits the upper ones count, of an image with alpha
    the colours. Raises DataError where it cannot be read, or where its numbers have no known range.
    """
    image: Image.Image
    try:
        with Image.open(path) as image:
            if not _range_is_known(image):
                raise DataError(
                    f"the image {path} is of the mode {image.mode}: nothing says which of its "
                    "numbers are black and white; write it with 8 or 16 bits"
                )
            if image.mode in _UPPER_BYTES:
                upper = image.tobytes()[_UPPER_BYTES[image.mode]]
                return Image.frombytes("L", image.size, upper).convert("RGB")
            if "transparency" in image.info:
                # Pillow would warn of every palette that has one.
                return image.convert("RGBA").convert("RGB")
            return image.convert("RGB")
    except UNREADABLE as error:
        raise DataError(f"the image {path} cannot be read: {error}") from error


def _range_is_known(image: Image.Image) -> bool:
    """Whether black and white are the same numbers in all images like this one."""
    if image.mode == "I":
        return image.format in _FORMATS_OF_16_BITS
    if image.mode.startswith("I;16") and image.format == "TIFF":
        # Pillow neither scales 12 bits up nor inverts 16 bits of which 0 is white.
        # The images of this format alone have tags.
        tags = image.tag_v2  # type: ignore[attr-defined]
        return (tags.get(_BITS), tags.get(_BLACK_OR_WHITE)) == ((16,), _BLACK_IS_ZERO)
    return image.mode != "F"


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


def look(path: str, side: int, seed: str, *, crop: bool, flip: bool) -> Image.Image:
    """The image in `path` as a square of `side` pixels: a random part of it with `crop`, else its
    middle; with `flip`, half of all seeds mirror it. Equal arguments give equal pixels."""
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
    """Images to decode, each with the seed of its random changes, and where the pixels go: RGB in
    8 bits each, row by row, one image after the other from the byte `place` on."""

    place: int
    side: int
    crop: bool
    flip: bool
    images: list[tuple[str, str]]


def decode(request: PictureRequest, memory: mmap.mmap) -> None:
    """Do what was asked for. Raises DataError for an image that cannot be read."""
    begin = request.place
    for path, seed in request.images:
        image = look(path, request.side, seed, crop=request.crop, flip=request.flip)
        pixels = image.tobytes()
        memory[begin : begin + len(pixels)] = pixels
        begin += len(pixels)
