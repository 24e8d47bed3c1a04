"""Batches of images that are in memory as uint8, augmented and normalised on the device.

For images of the size of CIFAR, this takes about a twentieth of the CPU time of handling images one
by one with PIL, and needs no processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.augment import EpochAugmentation
from hpc_amp.data.images import Images, Normalization
from hpc_amp.data.order import epoch_order, rank_share
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData

Batch = tuple[Tensor, Tensor]
"""Normalised images, float32 [B, C, H, W], and their labels, int64 [B]."""

CHUNK = 256
"""Small batches are prepared together, up to this number of samples, to save calls. Larger groups
would not fit into the CPU's caches."""


class MemoryTraining(TrainingData):
    """Training batches of `images`, which are on the device."""

    def __init__(
        self, images: Images, normalization: Normalization, train: schema.Train, world: World
    ) -> None:
        # The channels of a pixel are neighbours in memory from here on: a crop then copies whole
        # rows of pixels, and batches need not be rearranged.
        self.pixels = images.pixels.permute(0, 2, 3, 1).contiguous()
        self.images = Images(self.pixels.permute(0, 3, 1, 2), images.labels)
        self.normalization = normalization.to(images.pixels.device)
        self.train = train
        self.world = world
        self.samples = len(images)
        self.steps_per_epoch = len(images) // train.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        pixels, labels = self.pixels, self.images.labels
        train, parts = self.train, self.train.accumulate
        order = epoch_order(self.samples, train.seed, epoch)
        steps = rank_share(order, train.batch_size, self.world.rank, self.world.size)[start:]
        if not len(steps):
            return
        augmentation = EpochAugmentation(
            train.data.augment,
            samples=self.samples,
            side=(pixels.shape[1], pixels.shape[2]),
            seed=train.seed,
            epoch=epoch,
            device=pixels.device,
        )
        local = train.batch_size // self.world.size
        for chunk in steps.to(pixels.device).split(max(1, CHUNK // local)):
            samples = chunk.flatten()
            moved = augmentation.move(pixels.index_select(0, samples), samples)
            images = self.normalization(moved.permute(0, 3, 1, 2))
            images = augmentation.blank(images, samples)
            images = arrange(images, train.channels_last)
            batches = zip(
                images.split(local // parts),
                labels.index_select(0, samples).split(local // parts),
                strict=True,
            )
            for micro_batches in zip(*[batches] * parts, strict=True):
                yield list(micro_batches)


def memory_evaluation(
    images: Images,
    normalization: Normalization,
    world: World,
    *,
    batch_size: int,
    channels_last: bool,
) -> Iterator[Batch]:
    """This rank's contiguous share of `images`, in batches. The shares of two ranks differ by at
    most one image, and each image is in exactly one share."""
    normalization = normalization.to(images.pixels.device)
    first, last = (len(images) * rank // world.size for rank in (world.rank, world.rank + 1))
    parts = (part[first:last].split(batch_size) for part in (images.pixels, images.labels))
    for pixels, labels in zip(*parts, strict=True):
        if len(labels):
            yield arrange(normalization(pixels), channels_last), labels


def put(values: Tensor, device: torch.device | str) -> Tensor:
    """`values` of the host on the device. A copy to a GPU is not waited for."""
    if torch.device(device).type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def arrange(images: Tensor, channels_last: bool) -> Tensor:
    """`images` in channels-last or contiguous memory order."""
    return images.contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )
