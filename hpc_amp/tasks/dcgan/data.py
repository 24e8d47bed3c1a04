"""Data for a GAN: images without labels, of one size, with values from -1 to 1. With each image
comes the latent vector of a generated image.

Latent vectors are drawn for the global batch of (seed, epoch, step), and are divided among ranks
and micro-batches in the same way as the images. So they do not depend on the number of ranks, or on
where a run was resumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from hpc_amp.data.images import Normalization
from hpc_amp.data.memory import arrange
from hpc_amp.data.order import generator
from hpc_amp.data.prepare import PreparedData, evaluation_batch_size, prepare
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData
from hpc_amp.tasks.dcgan.config import DcganConfig

Batch = tuple[Tensor, Tensor]
"""Images, float32 [B, C, S, S] from -1 to 1, and latent vectors, float32 [B, latent]."""


def prepare_unlabelled(train: DcganConfig, world: World, device: torch.device) -> PreparedData:
    """Prepare the data that `train.data` names, as images of `train.gan.image_size`.

    Images may be mirrored, but are not cropped or blanked, because the generator would learn the
    borders. Arguments and errors are those of `hpc_amp.data.prepare.prepare`.
    """
    data = train.data
    changed = dataclasses.replace(data.augment, crop=0, cutout=0)
    data = dataclasses.replace(data, augment=changed, image_size=train.gan.image_size)
    return prepare(dataclasses.replace(train, data=data), world, device)


class GanTraining(TrainingData):
    """Batches of the images of `labelled`, with latent vectors instead of labels."""

    def __init__(
        self,
        labelled: TrainingData,
        normalization: Normalization,
        train: DcganConfig,
        world: World,
    ) -> None:
        self.labelled = labelled
        self.samples, self.steps_per_epoch = labelled.samples, labelled.steps_per_epoch
        self.decoder = labelled.decoder
        self.normalization = normalization
        self.train = train
        self.world = world

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        train, world = self.train, self.world
        for step, micro_batches in enumerate(self.labelled.epoch(epoch, start), start):
            stream = generator(train.seed, "latent vectors", epoch, step)
            latents = torch.randn(train.batch_size, train.gan.latent, generator=stream)
            own = latents.chunk(world.size)[world.rank].chunk(train.accumulate)
            yield [
                (signed_images(images, self.normalization, train), part.to(images.device))
                for (images, _), part in zip(micro_batches, own, strict=True)
            ]

    def close(self) -> None:
        """Close the data with labels."""
        self.labelled.close()


def signed_images(images: Tensor, normalization: Normalization, train: DcganConfig) -> Tensor:
    """Convert normalised images [B, C, H, W] to float32 from -1 to 1, of `train.gan.image_size`
    pixels. `normalization` is reverted, and rounding makes the pixel values exact."""
    mean, std = (value[:, None, None] for value in (normalization.mean, normalization.std))
    pixels = images.mul(std).add_(mean).round_()
    side = train.gan.image_size
    if pixels.shape[2:] != (side, side):
        pixels = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
    return arrange(pixels.div_(127.5).sub_(1.0), train.channels_last)


def evaluation_latents(train: DcganConfig, world: World, device: torch.device) -> Iterator[Tensor]:
    """This rank's share of the latent vectors of an evaluation, in batches. They are the same in
    every evaluation."""
    latents = fixed_latents(train, "evaluation", train.gan.evaluation_images)
    first, last = (len(latents) * rank // world.size for rank in (world.rank, world.rank + 1))
    for part in latents[first:last].split(evaluation_batch_size(train, world)):
        if len(part):
            yield part.to(device)


def fixed_latents(train: DcganConfig, purpose: str, count: int) -> Tensor:
    """Latent vectors [count, latent] that only depend on the seed and on `purpose`."""
    stream = generator(train.seed, "latent vectors", purpose)
    return torch.randn(count, train.gan.latent, generator=stream)
