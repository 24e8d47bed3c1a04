"""Regions of frames, such as faces and hands, as crops that are judged on their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpc_amp.gan.data.reading import View
from hpc_amp.gan.video.poses import Figure, Point
from hpc_amp.gan.video.warp import sample

MARGIN = 1.5
"""The side of the square of a region, in extents of its key points: those of a face are on its
outline, and hair and forehead beyond."""
_HEADS = {25: (0, 15, 16, 17, 18), 18: (0, 14, 15, 16, 17)}
"""The key points of nose, eyes and ears, by the number of points of a body."""
_NOWHERE = (0.0, 0.0, 0.0)
"""The square of a region that a frame does not show."""


def squares(labels: Tensor, label: int, least: int) -> tuple[Tensor, Tensor]:
    """The square around all pixels of a label in each of the maps int64 [N, H, W], with a side of
    at least `least` pixels: float32 [N, 3], the column and the row of its middle, and its side; and
    whether the map has the label: bool [N]. Without it, the square is in the middle of the map."""
    mask = labels == label
    present = mask.flatten(1).any(1)

    def extent(filled: Tensor) -> tuple[Tensor, Tensor]:
        """The middle and the length of what is filled in [N, places]."""
        count = filled.shape[1]
        places = torch.arange(count, device=filled.device)
        first = torch.where(filled, places, count).amin(1)
        last = torch.where(filled, places, -1).amax(1)
        return torch.where(present, (first + last) / 2, (count - 1) / 2), last - first + 1

    column, wide = extent(mask.any(1))
    row, tall = extent(mask.any(2))
    side = torch.maximum(wide, tall).clamp(min=least)
    return torch.stack((column, row, side.float()), 1), present


def squares_of_points(
    figures: Sequence[Figure], regions: Sequence[str], width: int, height: int, view: View
) -> Tensor:
    """The square of each of the `regions` (see `hpc_amp.gan.video.config.REGIONS`) of a frame of
    `width` x `height` pixels, in pixels of the part that `view` shows: float32 [R, 3], the column
    and the row of its middle, and its side. Of several people, that of the largest one. The side is
    0 where less than two key points were found, or the middle is not in the part."""
    left, top, right, bottom = view.box(width, height)
    across, down = view.width / (right - left), view.height / (bottom - top)

    def square(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
        columns = [(x + 0.5 - left) * across - 0.5 for x, _ in points]
        rows = [(y + 0.5 - top) * down - 0.5 for _, y in points]
        extent = max(max(columns) - min(columns), max(rows) - min(rows))
        column, row = (min(columns) + max(columns)) / 2, (min(rows) + max(rows)) / 2
        if not (-0.5 <= column <= view.width - 0.5 and -0.5 <= row <= view.height - 0.5):
            return _NOWHERE
        if view.mirror:
            column = view.width - 1 - column
        return column, row, MARGIN * extent

    found = []
    for region in regions:
        people = ([p for p in _points_of(figure, region) if p is not None] for figure in figures)
        of_people = [square(points) for points in people if points]
        found.append(max(of_people, key=lambda each: each[2], default=_NOWHERE))
    return torch.tensor(found)


def _points_of(figure: Figure, region: str) -> Sequence[Point]:
    """The key points of a region that belong to a figure."""
    if region == "head" and figure.part == "pose":
        return [figure.points[number] for number in _HEADS.get(len(figure.points), ())]
    return figure.points if figure.part == region else ()


def crop(images: Tensor, squares: Tensor, size: int) -> Tensor:
    """The `squares` of images [N, C, H, W], sampled bilinearly at `size` x `size` places: float32
    [N, C, size, size]. Beyond the border is the pixel at the border."""
    places = (torch.arange(size, device=images.device) + 0.5) / size - 0.5
    column, row, side = squares[:, :, None, None].unbind(1)
    shape = (len(images), size, size)
    columns = (column + side * places).expand(shape)
    rows = (row + side * places[:, None]).expand(shape)
    return sample(images, columns, rows)
