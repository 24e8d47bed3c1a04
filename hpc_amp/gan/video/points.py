"""Points of a scene: which of them each pixel of a frame shows, as files and as a sample shows
them, and the colours in which a sequence has shown them first.

A file is an array of numpy (`numpy.save`) of whole numbers, in one of two forms:

- [H, W]: the number of the point at each pixel, or any number below 0 where none is known;
- [N, 3]: row, column and number of each known point, for points that are few. Where several are at
  one pixel, the first of them counts.

Equal numbers in two frames of a sequence are the same point. Numbers may be any of int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.reading import View, show_map

PointSource = Callable[[int, tuple[int, int]], Tensor]
"""By the number of a frame, and its height and width: the point at each of its pixels, int64
[H, W]."""
NONE = -1
"""Stands for a pixel whose point is not known."""
GUIDANCE_CHANNELS = 4
"""Those of the colours of points and their mask."""


def read_points(path: str, size: tuple[int, int]) -> Tensor:
    """The point at each pixel of a frame of `size`, height and width, from a file: int64 [H, W].
    Raises DataError."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise DataError(f"the points {path} cannot be read: {error}") from error
    except (ValueError, EOFError):  # whose messages advise to load it as a program
        raise DataError(f"the points {path} cannot be read: they are no array of numbers") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        found = f"of {array.dtype}" if isinstance(array, np.ndarray) else "several arrays"
        raise DataError(f"{path} is {found}, and points are one array of whole numbers")
    array = array.astype(np.int64)
    height, width = size
    if array.shape == size:
        return torch.from_numpy(array).clamp_(min=NONE)
    if array.ndim != 2 or array.shape[1] != 3:
        raise DataError(
            f"{path} has the shape {list(array.shape)}, and points of a frame of {width} x "
            f"{height} pixels are [{height}, {width}], or [N, 3]: row, column and number of each"
        )
    rows, columns, numbers = array.T
    wrong = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width) | (numbers < 0)
    if wrong.any():
        line = int(wrong.argmax())
        raise DataError(
            f"{path}, line {line}: row, column and point are {array[line].tolist()}, and rows are "
            f"0 to {height - 1}, columns 0 to {width - 1}, points 0 or more"
        )
    shown = np.full(size, NONE, dtype=np.int64)
    places, lines = np.unique(rows * width + columns, return_index=True)  # the first lines
    shown.flat[places] = numbers[lines]
    return torch.from_numpy(shown)


def show_points(points: Tensor, view: View) -> Tensor:
    """The part of points int64 [H, W] that `view` shows; each pixel is the nearest one."""
    places = torch.arange(points.numel(), dtype=torch.int32).view(points.shape)
    return points.flatten()[show_map(Image.fromarray(places.numpy()), view).long()]


def visible(points: Tensor) -> tuple[Tensor, Tensor]:
    """The different points of a frame [H, W], in ascending order, and the first pixel that shows
    each, counted from row to row: two of int64 [N]."""
    numbers, pixels = points.flatten().sort(stable=True)
    first = numbers >= 0
    first[1:] &= numbers[1:] != numbers[:-1]
    return numbers[first], pixels[first]


class PointColours:
    """The colours in which a sequence has shown the points of its scene first. The memory grows
    with the number of points, and not with that of frames."""

    def __init__(self, device: torch.device) -> None:
        self.numbers = torch.full((1,), NONE, device=device)
        """Those of the points, in ascending order; the first stands for all pixels without one."""
        self.colours = torch.zeros(1, 3, device=device)

    def show(self, points: Tensor) -> Tensor:
        """The colours of points int64 [H, W], 0 where there is none, and a mask that is 1 where
        there is one: float32 [4, H, W]."""
        places, known = self._find(points)
        shown = self.colours[places].permute(2, 0, 1) * known
        return torch.cat((shown, known[None].float()))

    def add(self, points: Tensor, frame: Tensor) -> None:
        """Note the colours of points that have none yet, from a frame [3, H, W] that shows them."""
        numbers, pixels = visible(points)
        new = ~self._find(numbers)[1]
        colours = frame.detach().float().flatten(1)[:, pixels[new]].t()
        self.numbers, order = torch.cat((self.numbers, numbers[new])).sort()
        self.colours = torch.cat((self.colours, colours))[order]

    def _find(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where points would be in `numbers`, and which of them are there."""
        places = torch.searchsorted(self.numbers, points.contiguous())
        places = places.clamp(max=len(self.numbers) - 1)
        return places, (self.numbers[places] == points) & (points != NONE)


class Guidance:
    """What the points of sequences have looked like, for a generator that makes frame after frame
    of them (Mallya et al., 2020): `points` int64 [B, T, H, W], and `colours` from frames before,
    one for each sequence."""

    def __init__(self, points: Tensor, colours: Sequence[PointColours] | None = None) -> None:
        self.points = points
        self.colours = colours or [PointColours(points.device) for _ in points]
        self.shown: list[Tensor] = []
        """The images of the frames so far, each [B, 4, H, W]."""

    def show(self) -> Tensor:
        """The guidance image of the next frame: float32 [B, 4, H, W], colours from -1 to 1 and
        their mask."""
        now = self.points[:, len(self.shown)]
        pairs = zip(self.colours, now, strict=True)
        self.shown.append(torch.stack([colours.show(points) for colours, points in pairs]))
        return self.shown[-1]

    def add(self, frames: Tensor) -> None:
        """Note what the frames [B, 3, H, W] look like that were made with the last image."""
        now = self.points[:, len(self.shown) - 1]
        for colours, points, frame in zip(self.colours, now, frames, strict=True):
            colours.add(points, frame)
