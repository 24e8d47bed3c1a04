"""What a video task gets in each step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from hpc_amp.gan.data.batches import PairedBatch, condition
from hpc_amp.gan.data.config import PairedData


@dataclass(frozen=True, slots=True)
class VideoBatch:
    """Sequences of T frames, each frame with the input that a generator makes it from. Tensors are
    on the device, except `seeds`."""

    images: Tensor
    """float32 [B, T, 3, H, W] from -1 to 1."""
    seeds: Tensor
    """int64 [B] on the CPU, one number for each sequence (see `hpc_amp.gan.data.batches.normal`).
    """
    labels: Tensor | None = None
    """int64 [B, T, H, W], as in `PairedBatch`."""
    instances: Tensor | None = None
    """int64 [B, T, H, W]."""
    inputs: Tensor | None = None
    """float32 [B, T, 3, H, W] from -1 to 1."""
    flows: Tensor | None = None
    """float32 [B, T - 1, 2, H, W]: from each frame but the first to the one before it (see
    `hpc_amp.gan.video.warp`). None without reference flow."""
    known: Tensor | None = None
    """bool [B, T - 1, H, W]: where `flows` is known, the point is visible in the frame before."""
    points: Tensor | None = None
    """int64 [B, T, H, W]: the point of the scene that a pixel shows, -1 where none is known (see
    `hpc_amp.gan.video.points`). None without points."""
    regions: Tensor | None = None
    """float32 [B, T, R, 3]: the squares around key points (see
    `hpc_amp.gan.video.regions.squares_of_points`). None without key points, and in evaluations."""

    def __len__(self) -> int:
        return len(self.seeds)

    def examples(self, count: int) -> Tensor:
        """Up to `count` of its frames, those of the first sequences, [N, 3, H, W] from -1 to 1."""
        return self.images.flatten(0, 1)[:count]

    @property
    def frames(self) -> PairedBatch:
        """All frames as pairs, [B * T, ...]; a frame has the seed of its sequence."""
        parts = (self.images, self.labels, self.instances, self.inputs)
        images, labels, instances, inputs = (
            None if part is None else part.flatten(0, 1) for part in parts
        )
        assert images is not None
        seeds = self.seeds.repeat_interleave(self.images.shape[1])
        return PairedBatch(images, seeds, labels, instances, inputs)

    def first(self, count: int) -> VideoBatch:
        """A copy of the first sequences, which keeps no memory of the others."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts = {name: value[:count].clone() for name, value in values.items() if value is not None}
        return dataclasses.replace(self, **parts)

    def there_and_back(self) -> VideoBatch:
        """The frames in their order, then backwards to the first one, without flows."""
        parts = {"images", "labels", "instances", "inputs", "points"}
        values = {name: getattr(self, name) for name in parts}
        both = {
            name: torch.cat((value, value[:, :-1].flip(1)), 1)
            for name, value in values.items()
            if value is not None
        }
        return dataclasses.replace(self, **both, flows=None, known=None, regions=None)


def conditions(batch: VideoBatch, config: PairedData) -> Tensor:
    """What a generator makes the frames from: float32 [B, T, `config.condition_channels`, H, W]."""
    length = batch.images.shape[1]
    shown = condition(batch.frames, config).contiguous()
    return shown.view(-1, length, *shown.shape[1:])
