"""A synthetic image set that can be learned, for tests, scaling studies and machines without data.

Each class is a smooth coloured pattern. An image shows the pattern of its class at a random
position and contrast, below another smooth pattern that belongs to no class, and noise. All values
are integers, so every rank generates the same bits on any CPU with any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.images import Images, ImageSet
from hpc_amp.data.order import generator

GRID = 4
"""The number of cells of a pattern in each direction."""
CONTRAST = (24, 56)
"""The range of the strength of the class pattern, in 64ths."""
CLUTTER = 24
"""The strength of the other pattern, in 64ths."""
NOISE = 24
"""The largest change by noise, in pixel values."""


def synthetic_set(config: schema.Synthetic, seed: int = 0) -> ImageSet:
    """Generate a set with the sizes in `config`. Equal arguments give equal images. Training and
    test images are drawn separately from the same classes."""
    cells = _cells(config.classes, config.channels, generator(seed, "classes"))
    patterns = _smooth(cells, config.image_size)
    train = _draw(config.train, patterns, generator(seed, "train"))
    test = _draw(config.test, patterns, generator(seed, "test"))
    return ImageSet("SYNTHETIC", config.classes, train, test)


def _cells(count: int, channels: int, stream: torch.Generator) -> Tensor:
    """Random cells [count, channels, GRID, GRID] of patterns."""
    return torch.randint(-127, 128, (count, channels, GRID, GRID), generator=stream)


def _smooth(cells: Tensor, side: int) -> Tensor:
    """Interpolate `cells` [N, C, GRID, GRID] linearly to patterns [N, C, side, side]. Opposite
    borders match, so a pattern can be shifted cyclically."""
    place = torch.arange(side) * GRID
    cell, weight = place // side, place % side
    following = (cell + 1) % GRID
    rows = cells[:, :, cell] * (side - weight)[:, None] + cells[:, :, following] * weight[:, None]
    both = rows[:, :, :, cell] * (side - weight) + rows[:, :, :, following] * weight
    return both // (side * side)


def _draw(count: int, patterns: Tensor, stream: torch.Generator) -> Images:
    """Draw `count` labelled images with patterns [classes, C, side, side]."""
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
