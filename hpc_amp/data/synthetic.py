"""A synthetic image set that can be learned: for tests, scaling studies and machines without data.

Each class is a smooth coloured pattern. An image shows the pattern of its class at a random place
and contrast, under another smooth pattern that belongs to no class, and noise. Everything is
computed in integers, so each rank makes the same bits on any CPU with any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.images import Images, ImageSet
from hpc_amp.data.order import generator

GRID = 4
"""Cells of a pattern in each direction."""
CONTRAST = (24, 56)
"""Range of the strength of the class pattern, in 64ths."""
CLUTTER = 24
"""Strength of the other pattern, in 64ths."""
NOISE = 24
"""Largest deviation by noise, in pixel values."""


def synthetic_set(config: schema.Synthetic, seed: int = 0) -> ImageSet:
    """The set of the sizes in `config`. Equal arguments give equal images; training and test images
    are separate draws from the same classes."""
    cells = _cells(config.classes, config.channels, generator(seed, "classes"))
    patterns = _smooth(cells, config.image_size)
    train = _draw(config.train, patterns, generator(seed, "train"))
    test = _draw(config.test, patterns, generator(seed, "test"))
    return ImageSet("SYNTHETIC", config.classes, train, test)


def _cells(count: int, channels: int, stream: torch.Generator) -> Tensor:
    return torch.randint(-127, 128, (count, channels, GRID, GRID), generator=stream)


def _smooth(cells: Tensor, side: int) -> Tensor:
    """`cells` [N, C, GRID, GRID] as patterns [N, C, side, side], interpolated linearly and joined
    at opposite borders, so that they can be rolled."""
    place = torch.arange(side) * GRID
    cell, weight = place // side, place % side
    following = (cell + 1) % GRID
    rows = cells[:, :, cell] * (side - weight)[:, None] + cells[:, :, following] * weight[:, None]
    both = rows[:, :, :, cell] * (side - weight) + rows[:, :, :, following] * weight
    return both // (side * side)


def _draw(count: int, patterns: Tensor, stream: torch.Generator) -> Images:
    classes, channels, side, _ = patterns.shape
    labels = torch.randperm(count, generator=stream) % classes
    low, high = CONTRAST
    parts = []
    for part in labels.split(1024):
        size = len(part)
        top, left = torch.randint(side, (2, size, 1), generator=stream)
        strength = torch.randint(low, high + 1, (size, 1, 1, 1), generator=stream)
        clutter = _smooth(_cells(size, channels, stream), side)
        noise = torch.randint(-NOISE, NOISE + 1, (size, channels, side, side), generator=stream)
        rows = (torch.arange(side) + top) % side
        columns = (torch.arange(side) + left) % side
        shown = patterns[part[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        values = shown.permute(0, 3, 1, 2) * strength + clutter * CLUTTER
        parts.append((128 + values // 64 + noise).clamp(0, 255).to(torch.uint8))
    return Images(torch.cat(parts), labels)
