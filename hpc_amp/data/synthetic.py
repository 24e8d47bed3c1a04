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
IN_CACHE = 2**18
"""How many pixel values are computed at once: so few that they stay in the cache."""


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
    """Interpolate `cells` [N, C, GRID, GRID] linearly to patterns [N, C, side, side] in int16.
    Opposite borders match, so a pattern can be shifted cyclically."""
    pixel = torch.arange(side)
    cell, weight = pixel * GRID // side, pixel * GRID % side
    shares = torch.zeros(side, GRID, dtype=torch.float64)
    shares[pixel, cell] = (side - weight).double()
    shares[pixel, (cell + 1) % GRID] = weight.double()
    # float64 has all integers that occur, and rounds no quotient to an integer that it is not.
    both = shares @ cells.double() @ shares.T
    return both.div_(side * side).floor_().to(torch.int16)


def _draw(count: int, patterns: Tensor, stream: torch.Generator) -> Images:
    """Draw `count` labelled images with patterns [classes, C, side, side]."""
    classes, channels, side, _ = patterns.shape
    # [classes, C, side, side, side, side]: each pattern from each of its pixels on, without a copy.
    shifted = patterns.repeat(1, 1, 2, 2).unfold(2, side, 1).unfold(3, side, 1)
    labels = torch.randperm(count, generator=stream) % classes
    low, high = CONTRAST
    at_once = max(1, IN_CACHE // (channels * side * side))
    parts = []
    for part in labels.split(1024):
        size = len(part)
        tops, lefts = torch.randint(side, (2, size), generator=stream)
        strengths = torch.randint(
            low, high + 1, (size, 1, 1, 1), generator=stream, dtype=torch.int16
        )
        clutters = _cells(size, channels, stream)
        shape = (size, channels, side, side)
        noises = torch.randint(-NOISE, NOISE + 1, shape, generator=stream, dtype=torch.int8)
        drawn = (part, tops, lefts, strengths, clutters, noises)
        for label, top, left, strength, clutter, noise in zip(
            *(values.split(at_once) for values in drawn), strict=True
        ):
            values = shifted[label, :, top, left] * strength + _smooth(clutter, side) * CLUTTER
            parts.append(((values >> 6) + noise + 128).clamp_(0, 255).to(torch.uint8))
    return Images(torch.cat(parts), labels)
