"""Synthetic sets of each kind: deterministic, learnable, and with a known truth.

Everything is computed in integers, so each rank draws the same bits on any CPU with any number of
threads. Textures have a period of 4 pixels and a mean of 0, and do not change when an image is
mirrored whose width is a multiple of 4.

Each image is drawn when it is read, so that a set of large images needs little time to prepare and
little memory. Random numbers come from streams of the whole set, whose states at each image are
found on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hpc_amp.data.order import generator
from hpc_amp.gan.data.batches import edges
from hpc_amp.gan.data.config import SyntheticClasses, SyntheticDomains

T = TypeVar("T")

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


class Shapes:
    """Random rectangles, ellipses and diamonds, one for each of `count` images. They reach from
    their middle over a `smallest`-th to a `largest`-th part of the image, in each direction."""

    def __init__(
        self,
        count: int,
        size: tuple[int, int],
        stream: torch.Generator,
        smallest: int = 8,
        largest: int = 3,
    ) -> None:
        height, width = size

        def draw(low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, (count, 1, 1), generator=stream)

        self.size = size
        self.kind = draw(0, 2)
        self.row, self.column = draw(0, height - 1), draw(0, width - 1)
        self.tall, self.wide = (draw(side // smallest, side // largest) for side in size)

    def mask(self, number: int) -> Tensor:
        """Where the shape of an image is: bool [1, H, W]."""
        height, width = self.size
        at = slice(number, number + 1)
        kind, row, column = self.kind[at], self.row[at], self.column[at]
        tall, wide = self.tall[at], self.wide[at]
        rows = (torch.arange(height)[None, :, None] - row).abs()
        columns = (torch.arange(width)[None, None] - column).abs()
        rectangle = (rows <= tall) & (columns <= wide)
        ellipse = rows**2 * wide**2 + columns**2 * tall**2 <= tall**2 * wide**2
        diamond = rows * wide + columns * tall <= tall * wide
        return torch.where(kind == 0, rectangle, torch.where(kind == 1, ellipse, diamond))


class Noise:
    """The noise of images of `size`, one after another from `stream`."""

    def __init__(self, size: tuple[int, int], stream: torch.Generator) -> None:
        self.shape = (1, *size, 3)
        self._states = [stream.get_state()]
        self._stream = torch.Generator()

    def state(self, number: int) -> Tensor:
        """The state of the stream before the noise of an image."""
        while len(self._states) <= number:
            self._stream.set_state(self._states[-1])
            self._draw()
            self._states.append(self._stream.get_state())
        return self._states[number]

    def add(self, number: int, values: Tensor) -> Tensor:
        """Values [1, H, W, 3] from 0 to 255 with the noise of an image, as uint8 [H, W, 3]."""
        self._stream.set_state(self.state(number))
        return (values + self._draw()).clamp_(0, 255).to(torch.uint8)[0]

    def _draw(self) -> Tensor:
        return torch.randint(-NOISE, NOISE + 1, self.shape, generator=self._stream)


class Drawn(Sequence[T], Generic[T]):
    """What `draw` draws for the numbers from 0 to `count`, which is kept."""

    def __init__(self, count: int, draw: Callable[[int], T]) -> None:
        self._count = count
        self._draw = draw
        self._kept: dict[int, T] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> T:  # type: ignore[override]
        if not 0 <= number < self._count:
            raise IndexError(number)
        if number not in self._kept:
            self._kept[number] = self._draw(number)
        return self._kept[number]

    def kept(self, number: int) -> T | None:
        """What was drawn for `number` already, or None."""
        return self._kept.get(number)


def chunk_size(size: tuple[int, int]) -> int:
    """How many pairs follow each other in the stream of shapes before their noise."""
    return max(1, 2**20 // (size[0] * size[1]))


# ---- pairs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """An image uint8 [H, W, 3] with labels and instances, uint8 [H, W]."""

    image: Tensor
    labels: Tensor
    instances: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What the pairs of a part of the set are drawn from."""

    shapes: list[tuple[Shapes, Tensor]]
    """With the labels of each [N, 1, 1]; later ones cover earlier ones."""
    noise: Noise


class DrawnPairs(Drawn[Pair]):
    """Overlapping shapes on a background of label 0. Each label, of 8 at most, has a colour and a
    texture, and the edges of shapes are darker, where two of one label meet, too.

    Colours, textures and edges follow from the labels and the instances. A perfect model differs
    from the images by the noise alone: an L1 distance of NOISE (NOISE + 1) / (2 NOISE + 1) pixel
    values, 3.23 of 255. `labels_of` then agrees with the labels everywhere.
    """

    def __init__(
        self, count: int, labels: int, size: tuple[int, int], seed: int, purpose: str
    ) -> None:
        super().__init__(count, self._draw_pair)
        self.labels = labels
        self.size = size
        self._state = generator("pairs", seed, purpose).get_state()
        self._chunks: list[_Chunk] = []

    def picture(self, number: int) -> Tensor:
        """The labels of a pair as a picture: uint8 [H, W, 3]."""
        greys = torch.arange(self.labels) * (255 // (self.labels - 1))
        grey = greys[self[number].labels.long()].to(torch.uint8)
        return grey[..., None].expand(-1, -1, 3).contiguous()

    def _draw_pair(self, number: int) -> Pair:
        index, place = divmod(number, chunk_size(self.size))
        chunk = self._chunk(index)
        ids = torch.zeros(1, *self.size, dtype=torch.int64)
        instances = torch.zeros_like(ids)
        for instance, (shapes, labels) in enumerate(chunk.shapes, 1):
            mask = shapes.mask(place)
            ids = torch.where(mask, labels[place], ids)
            instances = torch.where(mask, instance, instances)
        values = COLOURS[ids] + TEXTURE * _texture(ids % 4)[..., None]
        values -= EDGE * edges(instances).long().permute(0, 2, 3, 1)
        image = chunk.noise.add(place, values)
        return Pair(image, ids[0].to(torch.uint8), instances[0].to(torch.uint8))

    def _chunk(self, index: int) -> _Chunk:
        most = chunk_size(self.size)
        while len(self._chunks) <= index:
            stream = torch.Generator()
            stream.set_state(self._chunks[-1].noise.state(most) if self._chunks else self._state)
            count = min(most, len(self) - most * len(self._chunks))
            shapes = []
            for _ in range(SHAPES):
                drawn = Shapes(count, self.size, stream)
                label = torch.randint(1, self.labels, (count, 1, 1), generator=stream)
                shapes.append((drawn, label))
            self._chunks.append(_Chunk(shapes, Noise(self.size, stream)))
        return self._chunks[index]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Images uint8 [N, H, W, 3] with labels and instances, uint8 [N, H, W]."""

    images: Tensor
    labels: Tensor
    instances: Tensor


def draw_pairs(count: int, labels: int, size: tuple[int, int], seed: int, purpose: str) -> Pairs:
    """All pairs of `DrawnPairs` at once."""
    drawn = [*DrawnPairs(count, labels, size, seed, purpose)]
    return Pairs(
        torch.stack([pair.image for pair in drawn]),
        torch.stack([pair.labels for pair in drawn]),
        torch.stack([pair.instances for pair in drawn]),
    )


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


class DrawnDomains:
    """A large and a small shape on a background, which differ in size, so that a model can find out
    from unpaired images which is which. Both domains show shapes, positions and sizes of
    the same distribution, in other colours and textures. Domain B has `config.styles` palettes,
    each as frequent.

    `a` and `b` are `count` images each, uint8 [H, W, 3]. A perfect model of one style makes
    `a_in_b(number)[0]` from `a[number]` and `b_in_a(number)[0]` from `b[number]`, without an error.
    With several styles, each translation to B is one of `a_in_b(number)`, and all of them come
    equally often; the error is to the nearest one.
    """

    def __init__(
        self, size: tuple[int, int], config: SyntheticDomains, count: int, purpose: str
    ) -> None:
        self.styles = config.styles
        self._contents = []
        for name in "ab":
            stream = generator(config.seed, purpose, name)
            large = Shapes(count, size, stream, 4, 3)
            self._contents.append((large, Shapes(count, size, stream, 16, 8)))
        # The noise of `b` follows that of `a`.
        noise = Noise(size, generator(config.seed, purpose, "noise"))
        self.a = Drawn(count, lambda number: noise.add(number, self._draw(0, number, 0)))
        self.b = Drawn(
            count,
            lambda number: noise.add(
                count + number, self._draw(1, number, 1 + number % self.styles)
            ),
        )

    def a_in_b(self, number: int) -> Tensor:
        """The content of an image of A in each style of B: uint8 [styles, 3, H, W], no noise."""
        drawn = [self._draw(0, number, 1 + style) for style in range(self.styles)]
        return torch.cat([_planes(values) for values in drawn])

    def b_in_a(self, number: int) -> Tensor:
        """The content of an image of B in domain A: uint8 [1, 3, H, W], without noise."""
        return _planes(self._draw(1, number, 0))

    def _draw(self, domain: int, number: int, palette: int) -> Tensor:
        """The content of an image in a palette: values int64 [1, H, W, 3]."""
        large, small = (shapes.mask(number) for shapes in self._contents[domain])
        # 0 for background, 1 for the large shape, 2 for the smaller one.
        contents = torch.where(small, 2, large.long())
        kinds = _TEXTURES[int(palette > 0), contents]
        return _PALETTES[palette, contents] + TEXTURE * _texture(kinds)[..., None]


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
        stream = generator(config.seed, "contents")
        self._shapes = [Shapes(len(self.labels), size, stream) for _ in range(2)]
        self._noise = Noise(size, generator(config.seed, "noise"))
        self.images = Drawn(len(self.labels), self._draw_image)
        """Each uint8 [H, W, 3]."""

    def truth(self, number: int, label: int) -> Tensor:
        """The content of an image drawn as a class: uint8 [3, H, W], without noise."""
        return _planes(self._draw(number, label))[0]

    def _draw_image(self, number: int) -> Tensor:
        return self._noise.add(number, self._draw(number, int(self.labels[number])))

    def _draw(self, number: int, label: int) -> Tensor:
        mask = self._shapes[0].mask(number) | self._shapes[1].mask(number)
        colour = torch.where(mask, self.foreground[label], self.background[label])
        kinds = torch.where(mask, self.texture[label], 0)
        return COLOURS[colour] + TEXTURE * _texture(kinds)[..., None]
