"""Regions of frames, such as faces and hands, as crops that are judged on their own."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.gan.video.warp import sample


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


def crop(images: Tensor, squares: Tensor, size: int) -> Tensor:
    """The `squares` of images [N, C, H, W], sampled bilinearly at `size` x `size` places: float32
    [N, C, size, size]. Beyond the border is the pixel at the border."""
    places = (torch.arange(size, device=images.device) + 0.5) / size - 0.5
    column, row, side = squares[:, :, None, None].unbind(1)
    shape = (len(images), size, size)
    columns = (column + side * places).expand(shape)
    rows = (row + side * places[:, None]).expand(shape)
    return sample(images, columns, rows)
