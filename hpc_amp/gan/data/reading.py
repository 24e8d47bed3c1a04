"""From image files, or images in memory, to tensors of one size: which part of an image a sample
shows, and whether it is mirrored.

All of it is done by Pillow. Operations of torch would start threads of their own in each of the
threads that read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from hpc_amp.data.decode import to_pixels
from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import UNREADABLE, open_rgb, upright_size
from hpc_amp.gan.data.config import GanData

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


# ---- which part of an image ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """The part of an image that a sample shows. One view for all members of a pair gives the same
    part of each."""

    height: int
    width: int
    load_size: tuple[int, ...]
    """Height and width to which the whole image is scaled; one number for the shorter side."""
    down: float
    """Where the part begins, from 0 (at the top) to 1 (as far down as it can)."""
    right: float
    """The same from left to right."""
    mirror: bool

    def box(self, width: int, height: int) -> Box:
        """The part of an image of `width` x `height` pixels."""
        rows, columns = self._loaded(width, height)
        top = round(self.down * (rows - self.height))
        left = round(self.right * (columns - self.width))
        across, along = width / columns, height / rows
        return (
            left * across,
            top * along,
            (left + self.width) * across,
            (top + self.height) * along,
        )

    def _loaded(self, width: int, height: int) -> tuple[int, int]:
        if len(self.load_size) == 2:
            return self.load_size[0], self.load_size[1]
        # A narrow image may need more, so that it covers the part that is cut out.
        scale = max(
            self.load_size[0] / min(width, height), self.height / height, self.width / width
        )
        return max(self.height, round(height * scale)), max(self.width, round(width * scale))


def random_view(data: GanData, seed: int, member: str = "") -> View:
    """The view of a training sample, which depends on its seed alone. Members of a sample that are
    to be seen differently have names."""
    random = Random(f"{seed} {member}")
    down, right, mirror = random.random(), random.random(), random.random() < 0.5
    load_size = tuple(data.load_size or data.size)
    return View(*data.size, load_size, down, right, mirror and data.flip)


def whole_view(data: GanData) -> View:
    """The view of an evaluation: the whole image, or its middle where `load_size` keeps the ratio
    of the sides."""
    keeps_ratio = data.load_size is not None and len(data.load_size) == 1
    size = (min(data.size),) if keeps_ratio else data.size
    return View(*data.size, size, 0.5, 0.5, mirror=False)


# ---- images --------------------------------------------------------------------------------------


class ImageSource(ABC):
    """Images by number."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def open(self, number: int) -> Image.Image:
        """An image as RGB. Raises DataError where it cannot be read."""

    @abstractmethod
    def size(self, number: int) -> tuple[int, int]:
        """Width and height of an image, without decoding it. Raises DataError."""

    @abstractmethod
    def name(self, number: int) -> str:
        """What messages call it."""

    def read(self, number: int, view: View) -> Tensor:
        """The part of an image that `view` shows: uint8 [3, H, W]. Raises DataError."""
        return show(self.open(number), view)


class ImageFiles(ImageSource):
    """Image files. With `half`, each file has two images side by side, and this is the left (0) or
    the right one (1)."""

    def __init__(self, paths: Sequence[str], half: int | None = None) -> None:
        self.paths = paths
        self.half = half

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, number: int) -> Image.Image:
        """An image as RGB. Raises DataError where it cannot be read."""
        image = open_rgb(self.paths[number])
        if self.half is None:
            return image
        width = self._half_of(number, image.width)
        return image.crop((self.half * width, 0, (self.half + 1) * width, image.height))

    def size(self, number: int) -> tuple[int, int]:
        """Width and height of an image, without decoding it. Raises DataError."""
        width, height = upright_size(self.paths[number])
        return (width if self.half is None else self._half_of(number, width)), height

    def _half_of(self, number: int, whole: int) -> int:
        width, odd = divmod(whole, 2)
        if odd:
            raise DataError(
                f"the image {self.paths[number]} is {whole} pixels wide: two images of equal "
                "size side by side have an even width"
            )
        return width

    def name(self, number: int) -> str:
        """Its path."""
        return self.paths[number]


class DrawnImages(ImageSource):
    """`count` images that `draw` draws, by number: uint8 [H, W, 3]."""

    def __init__(self, count: int, draw: Callable[[int], Tensor]) -> None:
        self.count = count
        self.draw = draw

    def __len__(self) -> int:
        return self.count

    def open(self, number: int) -> Image.Image:
        """An image as RGB."""
        return Image.fromarray(self.draw(number).numpy())

    def size(self, number: int) -> tuple[int, int]:
        """Width and height of an image."""
        height, width, _ = self.draw(number).shape
        return width, height

    def name(self, number: int) -> str:
        """Its number."""
        return f"image {number}"


def show(image: Image.Image, view: View) -> Tensor:
    """The part of `image` that `view` shows: uint8 [3, H, W]. Scaling averages over all pixels that
    become one."""
    size = view.width, view.height
    box = view.box(image.width, image.height)
    if size != image.size or box != (0, 0, *size):
        image = image.resize(size, Image.Resampling.BICUBIC, box=box)
    if view.mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_pixels(image)


# ---- maps of numbers -----------------------------------------------------------------------------


class MapSource(ABC):
    """Maps of label ids or of instances, by number. A pixel of a map is a number of 8 bits (mode L)
    or of 32 bits (mode I)."""

    @abstractmethod
    def open(self, number: int) -> Image.Image:
        """A map. Raises DataError where it cannot be read."""

    @abstractmethod
    def name(self, number: int) -> str:
        """What messages call it."""


class MapFiles(MapSource):
    """Image files whose pixels are numbers of 2 to 16 bits, or numbers of a palette. With
    `colours`, pixels may have colours, too: each stands for a number."""

    def __init__(self, paths: Sequence[str], *, colours: bool = False) -> None:
        self.paths = paths
        self.colours = colours

    def open(self, number: int) -> Image.Image:
        """A map. Raises DataError where it cannot be read, has colours instead of numbers, or is a
        JPEG."""
        path = self.paths[number]
        image: ImageFile
        try:
            with Image.open(path) as image:
                if image.format == "JPEG":
                    raise DataError(
                        f"the map {path} is a JPEG, which changes the numbers of pixels: make it "
                        "again as .png"
                    )
                if image.mode in ("L", "P"):
                    numbers = _grey_numbers(image)
                    # Not converted: that would make the colours of a palette grey.
                    greys = Image.frombytes("L", image.size, image.tobytes())
                    return greys if numbers is None else greys.point(numbers)
                if image.mode.startswith("I"):
                    return image.convert("I")
                if self.colours and image.mode in ("RGB", "RGBA"):
                    return _number_colours(image)
                raise DataError(
                    f"the map {path} is of the mode {image.mode}: each pixel has to be a number of "
                    "2 to 16 bits, or the number of a colour in a palette"
                )
        except UNREADABLE as error:
            raise DataError(f"the map {path} cannot be read: {error}") from error

    def name(self, number: int) -> str:
        """Its path."""
        return self.paths[number]


# How Pillow calls grey values in a file: of 2, 4 or 8 bits, and inverted (I) where 0 is white.
_GREYS = re.compile("L(?:;([24])?(I)?R?)?")


def _grey_numbers(image: ImageFile) -> list[int] | None:
    """The number in a file for each grey value that Pillow makes of it, if they differ: it spreads
    2 and 4 bits over 8, and inverts values whose 0 is white. The pixels are not read yet."""
    for tile in image.tile:
        name = tile[3] if isinstance(tile[3], str) else (tile[3] or ("",))[0]
        found = _GREYS.fullmatch(str(name))
        if found and (found[1] or found[2]):
            step = {"2": 85, "4": 17, None: 1}[found[1]]
            return [(255 - grey if found[2] else grey) // step for grey in range(256)]
    return None


def _number_colours(image: Image.Image) -> Image.Image:
    """The colours of an image as numbers: red, plus 256 times green, plus 65536 times blue."""
    bands = image.convert("RGB")
    bands.putalpha(0)
    return Image.frombytes("I", image.size, bands.tobytes(), "raw", "I;32")  # little-endian


class DrawnMaps(MapSource):
    """Maps that `draw` draws, by number: uint8 [H, W]."""

    def __init__(self, draw: Callable[[int], Tensor]) -> None:
        self.draw = draw

    def open(self, number: int) -> Image.Image:
        """A map."""
        return Image.fromarray(self.draw(number).numpy())

    def name(self, number: int) -> str:
        """Its number."""
        return f"map {number}"


def numbers_in(image: Image.Image) -> list[int]:
    """The different numbers in a map, from the smallest to the largest; of a map with numbers above
    255, the smallest and the largest one."""
    if image.mode == "I":
        low, high = image.getextrema()
        if low < 0 or high > 255:  # type: ignore[operator]
            return [low, high]  # type: ignore[list-item]
        image = image.convert("L")
    return [number for number, count in enumerate(image.histogram()) if count]


def show_map(image: Image.Image, view: View) -> Tensor:
    """The part of a map that `view` shows, each pixel the nearest one: uint8 or int32 [H, W]."""
    size = view.width, view.height
    box = view.box(image.width, image.height)
    if size != image.size or box != (0, 0, *size):
        image = image.resize(size, Image.Resampling.NEAREST, box=box)
    if view.mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    kind = torch.uint8 if image.mode == "L" else torch.int32
    return torch.frombuffer(bytearray(image.tobytes()), dtype=kind).view(image.height, image.width)
