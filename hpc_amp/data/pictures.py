"""Image files as 8-bit RGB: whole, or only the part that is used."""

from __future__ import annotations

import io
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image, UnidentifiedImageError

from hpc_amp.data.errors import DataError
from hpc_amp.data.tars import Member

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""

Location = str | Member
"""Where an image is: a path, or a place in a tar file."""

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged, too large, or in an unknown format."""

FINER = 2
"""A JPEG that is decoded at a reduced size still has this many times the pixels that are needed, in
both directions."""

# ---- whole images --------------------------------------------------------------------------------

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
_ORIENTATION, _UPRIGHT = 0x0112, 1  # an EXIF tag, and its usual value
# What makes an image upright, by the value of this tag. From 5 on, width and height change places.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_rgb(place: Location) -> Image.Image:
    """Open an image as 8-bit RGB, turned upright as its EXIF data say. Of 16 bits, the upper 8 are
    used; an alpha channel is ignored.

    Raises DataError if the file cannot be read, or if the range of its numbers is not known.
    """
    image: Image.Image
    try:
        with Image.open(_file(place)) as image:
            return _upright_rgb(image, place)
    except UNREADABLE as error:
        raise _unreadable(place, error) from error


def upright_size(place: Location) -> tuple[int, int]:
    """Width and height of an image as `open_rgb` returns it, without decoding it. Raises
    DataError."""
    image: Image.Image
    try:
        with Image.open(_file(place)) as image:
            width, height = image.size
            return (width, height) if _orientation(image) < 5 else (height, width)
    except UNREADABLE as error:
        raise _unreadable(place, error) from error


def content_of(place: Location) -> bytes:
    """The bytes of an image file. Raises OSError."""
    return Path(place).read_bytes() if isinstance(place, str) else place.content()


def _file(place: Location) -> str | io.BytesIO:
    """What Pillow opens: of a file of its own, it reads no more than it needs."""
    return place if isinstance(place, str) else io.BytesIO(place.content())


def _unreadable(place: Location, error: BaseException) -> DataError:
    # Pillow would name the object in memory that it read from.
    why = "it has no known format" if isinstance(error, UnidentifiedImageError) else error
    return DataError(f"the image {place} cannot be read: {why}")


def _upright_rgb(image: Image.Image, place: Location) -> Image.Image:
    orientation = _orientation(image)
    rgb = _rgb(image, place)
    return rgb.transpose(_TURNS[orientation]) if orientation in _TURNS else rgb


def _orientation(image: Image.Image) -> int:
    """The value of the EXIF tag, 1 to 8."""
    if image.format == "TIFF":  # Pillow itself turns these
        return _UPRIGHT
    try:
        value = image.getexif().get(_ORIENTATION)
    except (SyntaxError, ValueError, struct.error):  # damaged EXIF data; the image may be intact
        return _UPRIGHT
    return value if value in _TURNS else _UPRIGHT


def _rgb(image: Image.Image, place: Location) -> Image.Image:
    if not _range_is_known(image):
        raise DataError(
            f"the image {place} has mode {image.mode}, in which the numbers for black and "
            "white are not defined; write it with 8 or 16 bits"
        )
    if image.mode in _UPPER_BYTES:
        upper = image.tobytes()[_UPPER_BYTES[image.mode]]
        return Image.frombytes("L", image.size, upper).convert("RGB")
    if "transparency" in image.info:
        # Otherwise, Pillow would warn about each palette with transparency.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


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


# ---- parts of images -----------------------------------------------------------------------------

# Rows below a part of a JPEG that its pixels may depend on: colours have half the resolution in
# most files, and are interpolated.
_CONTEXT = 16
_END_OF_IMAGE = b"\xff\xd9"


def open_part(
    place: Location, choose: Callable[[int, int], Box], needed: int | None = None
) -> Image.Image:
    """Open the box of an image that `choose` returns for its width and height, as 8-bit RGB.

    The pixels are those of `open_rgb`, but a JPEG is only decoded down to the last row of the box.
    With `needed`, the number of pixels in each direction to which the box will be reduced, a JPEG
    is decoded at 1/2, 1/4 or 1/8 of its size where that is still `FINER` times as many. Raises
    DataError.
    """
    image: Image.Image
    try:
        content = content_of(place)
        with Image.open(io.BytesIO(content)) as image:
            if not is_whole_upright_jpeg(image, content):
                image = _upright_rgb(image, place)
                return image.crop(choose(*image.size))
            box = choose(*image.size)
        return _jpeg_part(content, box, needed)
    except UNREADABLE as error:
        raise _unreadable(place, error) from error


def is_whole_upright_jpeg(image: Image.Image, content: bytes) -> bool:
    """Whether an opened file with this content is a JPEG of which a part can be decoded alone: not
    to be turned, and not cut off, since the end would not be missed if the part is above it."""
    return (
        image.format == "JPEG"
        and content.endswith(_END_OF_IMAGE)
        and _orientation(image) == _UPRIGHT
    )


def _jpeg_part(content: bytes, box: Box, needed: int | None) -> Image.Image:
    """A box of an upright JPEG."""
    left, top, right, bottom = box
    with Image.open(io.BytesIO(_first_rows(content, bottom + _CONTEXT))) as image:
        image.decodermaxblock = len(content)  # all at once, instead of joining blocks
        width, height = image.size
        if needed is not None:
            shrink = min(right - left, bottom - top) // (FINER * needed)
            if shrink > 1:
                image.draft(None, (width // shrink, height // shrink))
        scale = round(width / image.width)
        part: Image.Image
        part = image.crop((left // scale, top // scale, right // scale, bottom // scale))
        return part if part.mode == "RGB" else part.convert("RGB")


def _first_rows(content: bytes, rows: int) -> bytes:
    """A JPEG with a smaller height in its header. Decoders pass over the rows that it does not
    mention any more, without decoding them."""
    at = 2
    while content[at : at + 1] == b"\xff":
        if content[at + 1] == 0xFF:  # any number of these may precede a marker
            at += 1
            continue
        marker, size = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # the frame header
            height = int.from_bytes(content[at + 5 : at + 7], "big")
            changed = min(rows, height).to_bytes(2, "big")
            return b"".join([content[: at + 5], changed, memoryview(content)[at + 7 :]])
        at += 2 + size
    return content  # an unusual file


def centre_box(width: int, height: int, part: float = 1.0) -> Box:
    """The central square whose side is `part` of the shorter side. All sizes are in pixels."""
    side = max(1, round(min(width, height) * part))
    left, top = (width - side) // 2, (height - side) // 2
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
