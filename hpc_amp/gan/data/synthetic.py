"""Synthetic sets of each kind: deterministic, learnable, and with a known truth.

Everything is computed in integers, so each rank draws the same bits on any CPU with any number of
threads. Textures have a period of 4 pixels and a mean of 0, and do not change when an image is
mirrored whose width is a multiple of 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpc_amp.data.order import generator
from hpc_amp.gan.data.batches import edges
from hpc_amp.gan.data.config import SyntheticClasses, SyntheticDomains

NOISE = 6
"""Largest deviation by noise in pixel values, which no model can predict."""
TEXTURE = 20
"""Strength of textures in pixel values."""
EDGE = 32
"""How much darker the edges of instances are, in pixel values."""
LOW, HIGH = 60, 196
COLOURS = torch.tensor(
    [[HIGH if number & bit else LOW for bit in (4, 2, 1)] for number in (1, 6, 4, 3, 2, 5, 7, 0)]
)
"""Corners of a cube, so that all are far from each other: int64 [8, 3]."""
SHAPES = 5
"""Shapes in the label map of a pair."""


# ---- shapes and textures -------------------------------------------------------------------------


def textures(height: int, width: int) -> Tensor:
    """Patterns of -1 and 1: int64 [4, H, W]. None, stripes down, stripes across, and squares."""
    wave = torch.tensor([1, -1, -1, 1])
    down = wave[torch.arange(width) % 4].expand(height, width)
    across = wave[torch.arange(height) % 4][:, None].expand(height, width)
    return torch.stack((torch.zeros_like(down), down, across, down * across))


def shapes(count: int, size: tuple[int, int], stream: torch.Generator) -> Tensor:
    """Masks of random rectangles, ellipses and diamonds: bool [count, H, W]."""
    height, width = size

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (count, 1, 1), generator=stream)

    kind = draw(0, 2)
    row, column = draw(0, height - 1), draw(0, width - 1)
    tall, wide = (draw(side // 8, side // 3) for side in size)
    rows = (torch.arange(height)[None, :, None] - row).abs()
    columns = (torch.arange(width)[None, None] - column).abs()
    rectangle = (rows <= tall) & (columns <= wide)
    ellipse = rows**2 * wide**2 + columns**2 * tall**2 <= tall**2 * wide**2
    diamond = rows * wide + columns * tall <= tall * wide
    return torch.where(kind == 0, rectangle, torch.where(kind == 1, ellipse, diamond))


def noisy(values: Tensor, stream: torch.Generator) -> Tensor:
    """Values from 0 to 255 with noise, as uint8."""
    noise = torch.randint(-NOISE, NOISE + 1, values.shape, generator=stream)
    return (values + noise).clamp_(0, 255).to(torch.uint8)


def chunks(count: int, size: tuple[int, int]) -> list[int]:
    """`count` images in parts that need little memory while they are drawn."""
    largest = max(1, 2**20 // (size[0] * size[1]))
    return [min(largest, count - first) for first in range(0, count, largest)]


# ---- pairs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """Images uint8 [N, H, W, 3] with labels and instances, uint8 [N, H, W], and the labels as a
    picture, uint8 [N, H, W, 3]."""

    images: Tensor
    labels: Tensor
    instances: Tensor
    pictures: Tensor


def draw_pairs(count: int, labels: int, size: tuple[int, int], seed: int, purpose: str) -> Pairs:
    """Overlapping shapes on a background of label 0. Each label, of 8 at most, has a colour and a
    texture, and the edges of shapes are darker, where two of one label meet, too.

    Colours, textures and edges follow from the labels and the instances. A perfect model differs
    from the images by the noise alone: an L1 distance of NOISE (NOISE + 1) / (2 NOISE + 1) pixel
    values, 3.23 of 255. `labels_of` then agrees with the labels everywhere.
    """
    stream = generator("pairs", seed, purpose)
    parts = [_draw_pairs(part, labels, size, stream) for part in chunks(count, size)]
    images, ids, instances = (torch.cat(part) for part in zip(*parts, strict=True))
    greys = torch.arange(labels) * (255 // (labels - 1))
    pictures = greys[ids.long()].to(torch.uint8)[..., None].expand(-1, -1, -1, 3).contiguous()
    return Pairs(images, ids, instances, pictures)


def _draw_pairs(
    count: int, labels: int, size: tuple[int, int], stream: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.zeros(count, *size, dtype=torch.int64)
    instances = torch.zeros_like(ids)
    for number in range(1, SHAPES + 1):
        mask = shapes(count, size, stream)
        label = torch.randint(1, labels, (count, 1, 1), generator=stream)
        ids = torch.where(mask, label, ids)
        instances = torch.where(mask, number, instances)
    values = COLOURS[ids] + TEXTURE * _texture(ids % 4)[..., None]
    values -= EDGE * edges(instances).long().permute(0, 2, 3, 1)
    return noisy(values, stream), ids.to(torch.uint8), instances.to(torch.uint8)


def _texture(kinds: Tensor) -> Tensor:
    """The texture of each pixel, whose kind is 0 to 3: int64 [N, H, W]."""
    _, height, width = kinds.shape
    patterns = textures(height, width)
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    return patterns[kinds, rows, columns]


def labels_of(images: Tensor, labels: int) -> Tensor:
    """Which label each pixel looks like: the one of the nearest colour. `images` are float
    [B, 3, H, W] from -1 to 1; returns int64 [B, H, W]. For images of the set it is the label."""
    values = (images.float() + 1) * 127.5
    colours = COLOURS[:labels].to(values)
    distances = (values[:, None] - colours[None, :, :, None, None]).square().sum(2)
    return distances.argmin(1)


# ---- two domains ---------------------------------------------------------------------------------

_A = [[40, 60, 110], [220, 150, 60], [230, 220, 200]]
_STYLES = [
    [[210, 220, 180], [60, 130, 70], [150, 40, 60]],
    [[70, 30, 60], [200, 90, 170], [90, 200, 210]],
    [[150, 200, 230], [40, 50, 160], [240, 200, 60]],
    [[40, 50, 40], [190, 60, 40], [210, 210, 220]],
]
_PALETTES = torch.tensor([_A, *_STYLES])
"""Colours of background, large shape and small shape: of domain A, then of the styles of B."""
_TEXTURES = torch.tensor([[0, 1, 0], [2, 3, 0]])
"""Textures of the same: of domain A, and of B."""


@dataclass(frozen=True, slots=True)
class Domains:
    """Images of both domains, uint8 [N, H, W, 3], and what they show in the other one, uint8
    [N, styles, 3, H, W], without noise."""

    a: Tensor
    b: Tensor
    a_in_b: Tensor
    b_in_a: Tensor


def draw_domains(
    size: tuple[int, int], config: SyntheticDomains, count: int, purpose: str
) -> Domains:
    """A large and a small shape on a background. Both domains show shapes, positions and sizes of
    the same distribution, in other colours and textures. Domain B has `config.styles` palettes,
    each as frequent.

    A perfect model of one style makes `a_in_b[:, 0]` from `a` and `b_in_a[:, 0]` from `b`, without
    an error. With several styles, each translation to B is one of `a_in_b[:, style]`, and all of
    them come equally often; the error is to the nearest one.
    """
    contents = [_contents(count, size, generator(config.seed, purpose, name)) for name in "ab"]
    styles = torch.arange(count) % config.styles
    stream = generator(config.seed, purpose, "noise")
    everywhere = [torch.full((count,), style) for style in range(config.styles)]
    a_in_b = [_draw_domain(contents[0], 1 + style) for style in everywhere]
    return Domains(
        a=noisy(_draw_domain(contents[0], torch.zeros_like(styles)), stream),
        b=noisy(_draw_domain(contents[1], 1 + styles), stream),
        a_in_b=torch.stack([_planes(images) for images in a_in_b], 1),
        b_in_a=_planes(_draw_domain(contents[1], torch.zeros_like(styles)))[:, None],
    )


def _contents(count: int, size: tuple[int, int], stream: torch.Generator) -> Tensor:
    """0 for background, 1 for a large shape, 2 for a smaller one: int64 [N, H, W]."""
    large = shapes(count, size, stream)
    small = shapes(count, size, stream) & ~shapes(count, size, stream)
    return torch.where(small, 2, large.long())


def _draw_domain(contents: Tensor, palettes: Tensor) -> Tensor:
    """The contents in the palette of each: values int64 [N, H, W, 3]."""
    colours = _PALETTES[palettes[:, None, None], contents]
    kinds = _TEXTURES[(palettes > 0).long()[:, None, None], contents]
    return colours + TEXTURE * _texture(kinds)[..., None]


def _planes(values: Tensor) -> Tensor:
    """Values [N, H, W, 3] as uint8 [N, 3, H, W]."""
    return values.clamp(0, 255).to(torch.uint8).permute(0, 3, 1, 2).contiguous()


# ---- classes -------------------------------------------------------------------------------------

CLASSES = 8 * 7 * 4
"""Classes that there can be: pairs of different colours, and a texture."""


class DrawnClasses:
    """Images of all classes, which share shapes, positions and sizes. A class is a colour of the
    background, a colour of the shapes and their texture; classes that are held out are other
    combinations of the same colours and textures.

    A perfect model makes `truth` from a content image and any reference, without an error: the
    noise of neither image can be seen in it.
    """

    def __init__(self, size: tuple[int, int], config: SyntheticClasses, unseen: int) -> None:
        chosen = torch.randperm(CLASSES, generator=generator(config.seed, "classes"))
        self.background = chosen[: config.classes] // 28
        # One of the other seven colours.
        self.foreground = (self.background + 1 + chosen[: config.classes] // 4 % 7) % 8
        self.texture = chosen[: config.classes] % 4
        seen = config.classes - unseen
        counts = [config.train] * seen + [config.test] * unseen
        self.labels = torch.arange(config.classes).repeat_interleave(torch.tensor(counts))
        self.training = seen * config.train
        """How many images, the first ones, belong to classes that are trained on."""
        self.masks = _masks(len(self.labels), size, generator(config.seed, "contents"))
        stream = generator(config.seed, "noise")
        self.pixels = noisy(self._draw(self.masks, self.labels), stream)

    def truth(self, number: int, label: int) -> Tensor:
        """The content of an image drawn as a class: uint8 [3, H, W], without noise."""
        return _planes(self._draw(self.masks[[number]], torch.tensor([label])))[0]

    def _draw(self, masks: Tensor, labels: Tensor) -> Tensor:
        at = labels[:, None, None]
        colour = torch.where(masks, self.foreground[at], self.background[at])
        kinds = torch.where(masks, self.texture[at], 0)
        return COLOURS[colour] + TEXTURE * _texture(kinds)[..., None]


def _masks(count: int, size: tuple[int, int], stream: torch.Generator) -> Tensor:
    return shapes(count, size, stream) | shapes(count, size, stream)
