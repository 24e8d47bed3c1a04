"""Synthetic video with known truth: a camera that pans over a plane, and shapes that move on it.

Everything is computed in integers: a pixel of a frame is a point of the plane or of a shape, flows
are whole pixels, and a frame that is warped by its flow is exact wherever the point was visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpc_amp.data.order import generator
from hpc_amp.gan.data.synthetic import COLOURS, TEXTURE, Drawn
from hpc_amp.gan.video.config import SyntheticIdentities, SyntheticVideos

REGIONS = 10
"""Shapes that are painted on the plane."""
TURN = 8
"""Frames after which the camera takes another direction."""
_WAVE = torch.tensor([1, 1, -1, -1])


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One frame with its truth."""

    image: Tensor
    """uint8 [H, W, 3]."""
    labels: Tensor
    """uint8 [H, W]."""
    instances: Tensor
    """uint8 [H, W]: 0 for the plane, then a number for each moving shape."""
    points: Tensor
    """int32 [H, W]: the point of the scene that a pixel shows. Equal numbers in two frames of a
    sequence are the same point."""
    flow: Tensor
    """float32 [2, H, W]: from this frame to the one before it, in pixels (x, y). 0 in the first."""
    known: Tensor
    """bool [H, W]: whether the point is visible in the frame before."""


class DrawnVideos:
    """`count` sequences. The plane is a torus of twice the height and width of a frame, so that the
    camera comes back to places that it has seen.

    Each label has a colour and a texture, which lies on the plane or on the shape and moves with
    it. A label map does not say where the waves of a texture begin: a model that makes each frame
    on its own can know the colours, but has no way to keep the textures in their places.
    """

    def __init__(
        self,
        count: int,
        labels: int,
        size: tuple[int, int],
        config: SyntheticVideos,
        purpose: str,
    ) -> None:
        self.labels, self.size, self.config, self.purpose = labels, size, config, purpose
        self.lengths = (config.frames,) * count
        self._scenes = Drawn(count, self._draw_scene)
        self.frames: Drawn[VideoFrame] = Drawn(count * config.frames, self._draw)
        """All frames, from sequence to sequence."""

    def picture(self, number: int) -> Tensor:
        """The labels of a frame as a picture: uint8 [H, W, 3]."""
        greys = torch.arange(self.labels) * (255 // (self.labels - 1))
        grey = greys[self.frames[number].labels.long()].to(torch.uint8)
        return grey[..., None].expand(-1, -1, 3).contiguous()

    def _draw_scene(self, sequence: int) -> _Scene:
        stream = generator("video", self.config.seed, self.purpose, sequence)
        return _Scene(self.labels, self.size, self.config, stream)

    def _draw(self, number: int) -> VideoFrame:
        sequence, time = divmod(number, self.config.frames)
        scene = self._scenes[sequence]
        image, labels, instances, points = scene.show(time)
        flow, known = torch.zeros(2, *self.size), torch.zeros(self.size, dtype=torch.bool)
        if time > 0:
            flow = scene.flow(instances, time, time - 1)
            before = self.frames.kept(number - 1)
            shown_before = scene.show(time - 1)[3] if before is None else before.points
            known = _is_there(points, flow, shown_before)
        return VideoFrame(
            image.to(torch.uint8),
            labels.to(torch.uint8),
            instances.to(torch.uint8),
            points.to(torch.int32),
            flow.to(torch.float32),
            known,
        )

    def flow_between(self, sequence: int, time: int, other: int) -> tuple[Tensor, Tensor]:
        """The flow float32 [2, H, W] in pixels from the frame at `time` of a sequence to the one at
        `other`, and where it is known, bool [H, W]: where the point is visible in that frame."""
        first = sequence * self.config.frames
        frame, shown = self.frames[first + time], self.frames[first + other]
        flow = self._scenes[sequence].flow(frame.instances.long(), time, other)
        return flow.to(torch.float32), _is_there(frame.points, flow, shown.points)


class DrawnIdentities(DrawnVideos):
    """Sequences of `config.identities` identities, which follow each other again and again; each
    sequence has a motion of its own.

    An identity gives each label a colour, no two the same one, and a texture. So the label map does
    not say what a frame looks like, but another frame of the sequence does.
    """

    config: SyntheticIdentities

    def colours(self, sequence: int) -> Tensor:
        """The number in `COLOURS` of the colour of each label: int64 [labels]."""
        return self._look(sequence)[0]

    def _look(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Colours and textures of the labels, int64 [labels]."""
        identity = sequence % self.config.identities
        stream = generator("identity", self.config.seed, self.purpose, identity)
        colours = torch.randperm(len(COLOURS), generator=stream)[: self.labels]
        return colours, torch.randint(0, 4, (self.labels,), generator=stream)

    def _draw_scene(self, sequence: int) -> _Scene:
        scene = super()._draw_scene(sequence)
        scene.colours, scene.textures = self._look(sequence)
        return scene


class _Scene:
    """What one sequence shows."""

    def __init__(
        self, labels: int, size: tuple[int, int], config: SyntheticVideos, stream: torch.Generator
    ) -> None:
        self.size = size
        self.world = 2 * size[0], 2 * size[1]
        self.colours = torch.arange(labels)
        """The number in `COLOURS` of the colour of each label."""
        self.textures = torch.arange(labels) % 4
        """The texture of each label: none, stripes down, stripes across, squares."""

        def draw(low: int, high: int, *shape: int) -> Tensor:
            return torch.randint(low, high + 1, shape, generator=stream)

        def place(*shape: int) -> Tensor:
            return torch.stack([draw(0, side - 1, *shape) for side in self.world], -1)

        def extent(smallest: int, largest: int, *shape: int) -> Tensor:
            sides = [draw(max(1, side // smallest), side // largest, *shape) for side in size]
            return torch.stack(sides, -1)

        # The plane.
        rows, columns = (torch.arange(side) for side in self.world)
        self.ground = torch.zeros(self.world, dtype=torch.int64)
        kinds, middles, extents = draw(0, 2, REGIONS), place(REGIONS), extent(5, 2, REGIONS)
        of_regions = draw(1, labels - 1, REGIONS)
        for region in range(REGIONS):
            distances = self._distances(rows, columns, middles[region])
            mask = _within(int(kinds[region]), *distances, extents[region])
            self.ground[mask] = of_regions[region]
        self.phase = draw(0, 3, 2)

        # The camera, and the moving shapes.
        turns = -(-config.frames // TURN)
        steps = draw(-config.speed, config.speed, turns, 2).repeat_interleave(TURN, 0)
        self.camera = place() + torch.cat((torch.zeros(1, 2, dtype=torch.int64), steps.cumsum(0)))
        shapes = config.objects
        self.kinds, self.shown_labels = draw(0, 2, shapes), draw(1, labels - 1, shapes)
        self.extents, self.starts = extent(8, 4, shapes), place(shapes)
        self.speeds = draw(-config.speed, config.speed, shapes, 2)
        self.phases = draw(0, 3, shapes, 2)

    def show(self, time: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Image [H, W, 3], labels, instances and points [H, W], all int64."""
        camera = self.camera[time]
        rows, columns = (
            (torch.arange(side) + int(first)) % whole
            for side, first, whole in zip(self.size, camera, self.world, strict=True)
        )
        labels = self.ground[rows[:, None], columns]
        points = rows[:, None] * self.world[1] + columns
        texture = self._texture(labels, rows[:, None] + self.phase[0], columns + self.phase[1])
        instances = torch.zeros_like(labels)
        area = self.world[0] * self.world[1]
        for shape in range(len(self.kinds)):
            middle = self.starts[shape] + time * self.speeds[shape]
            down, right = self._distances(rows, columns, middle)
            mask = _within(int(self.kinds[shape]), down, right, self.extents[shape])
            label = self.shown_labels[shape].expand_as(labels)
            labels = torch.where(mask, label, labels)
            instances = torch.where(mask, shape + 1, instances)
            own = (shape + 1) * area + (down % self.world[0]) * self.world[1]
            points = torch.where(mask, own + right % self.world[1], points)
            phase = self.phases[shape]
            own = self._texture(label, down + phase[0], right + phase[1])
            texture = torch.where(mask, own, texture)
        image = (COLOURS[self.colours[labels]] + TEXTURE * texture[..., None]).clamp(0, 255)
        return image, labels, instances, points

    def flow(self, instances: Tensor, time: int, other: int) -> Tensor:
        """The flow int64 [2, H, W] from the frame at `time`, which has `instances` [H, W], to the
        one at `other`."""
        pan = self.camera[time] - self.camera[other]
        moves = torch.cat((pan[None], pan - (time - other) * self.speeds))
        world = torch.tensor(self.world)
        moves = (moves + world // 2) % world - world // 2  # the shorter way
        return moves.flip(1)[instances].permute(2, 0, 1)  # x, then y

    def _texture(self, labels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """-1, 0 or 1 for each pixel of `labels` [H, W]."""
        down = _WAVE[columns % 4].expand_as(labels)
        across = _WAVE[rows % 4].expand_as(labels)
        patterns = torch.stack((torch.zeros_like(labels), down, across, down * across))
        return patterns.gather(0, self.textures[labels][None])[0]

    def _distances(self, rows: Tensor, columns: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
        """How far rows [H, 1] and columns [W] of the torus are from `middle`, the shorter way."""
        high, wide = self.world
        down = (rows[:, None] - middle[0] + high // 2) % high - high // 2
        right = (columns - middle[1] + wide // 2) % wide - wide // 2
        return down, right


def _is_there(points: Tensor, flow: Tensor, other: Tensor) -> Tensor:
    """Whether the flow int64 [2, H, W] leads each of `points` [H, W] to itself in the frame with
    the points `other`: bool [H, W]."""
    height, width = points.shape
    rows = torch.arange(height)[:, None] + flow[1]
    columns = torch.arange(width) + flow[0]
    within = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return within & (other[rows.clamp(0, height - 1), columns.clamp(0, width - 1)] == points)


def _within(kind: int, down: Tensor, right: Tensor, extent: Tensor) -> Tensor:
    """Whether places at a distance [H, 1] and [W] from the middle of a shape belong to it."""
    tall, wide = extent.tolist()
    down, right = down.abs(), right.abs()
    rectangle: Tensor = (down <= tall) & (right <= wide)
    ellipse: Tensor = down**2 * wide**2 + right**2 * tall**2 <= tall**2 * wide**2
    diamond: Tensor = down * wide + right * tall <= tall * wide
    return (rectangle, ellipse, diamond)[kind]
