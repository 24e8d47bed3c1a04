"""Batches of image files that do not fit into memory. Loader processes decode them, and the device
normalises them.

The random changes of an image only depend on (seed, epoch, sample), not on the process that decodes
it. An epoch can begin at any step without reading the images before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.imagefolder import Files
from hpc_amp.data.images import Normalization
from hpc_amp.data.loaders import Batch as ImageFiles
from hpc_amp.data.loaders import Loaders
from hpc_amp.data.memory import Batch, arrange
from hpc_amp.data.order import epoch_order, rank_share
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData


class StreamedTraining(TrainingData):
    """Training batches of `files`, which `loaders` decode."""

    def __init__(
        self,
        files: Files,
        loaders: Loaders,
        train: schema.Train,
        world: World,
        device: torch.device,
    ) -> None:
        self.samples = len(files.paths)
        self.steps_per_epoch = self.samples // train.batch_size
        self.files, self.loaders = files, loaders
        self.train, self.world, self.device = train, world, device
        self.normalization = Normalization.imagenet().to(device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        train = self.train
        order = epoch_order(self.samples, train.seed, epoch)
        steps = rank_share(order, train.batch_size, self.world.rank, self.world.size)[start:]
        size = train.batch_size // self.world.size // train.accumulate
        pixels = self.loaders.load(self._image_files(epoch, step.tolist()) for step in steps)
        for step, images in zip(steps, pixels, strict=True):
            labels = torch.tensor([self.files.labels[sample] for sample in step.tolist()])
            images, labels = _finish(images, labels, self.normalization, train, self.device)
            yield list(zip(images.split(size), labels.split(size), strict=True))

    def close(self) -> None:
        """End the loader processes, which evaluations use as well."""
        self.loaders.close()

    def _image_files(self, epoch: int, samples: list[int]) -> ImageFiles:
        augment, seed = self.train.data.augment, self.train.seed
        images = [(self.files.paths[sample], f"{seed} {epoch} {sample}") for sample in samples]
        return ImageFiles(images, crop=augment.crop > 0, flip=augment.flip)


def streamed_evaluation(
    files: Files,
    loaders: Loaders,
    train: schema.Train,
    world: World,
    device: torch.device,
    batch_size: int,
) -> Iterator[Batch]:
    """This rank's contiguous share of `files`, in batches, without random changes."""
    count = len(files.paths)
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    parts = [slice(at, min(at + batch_size, last)) for at in range(first, last, batch_size)]
    normalization = Normalization.imagenet().to(device)
    batches = [ImageFiles([(path, "") for path in files.paths[part]]) for part in parts]
    for part, images in zip(parts, loaders.load(batches), strict=True):
        labels = torch.tensor(files.labels[part])
        yield _finish(images, labels, normalization, train, device)


def worker_count(asked: int | None, world: World) -> int:
    """The number of loader processes or threads of this rank: `asked`, or one less than its cores,
    at most 8."""
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0))
    if cores == os.cpu_count():  # not bound to cores: the ranks of the node share all of them
        cores //= world.local_size
    return min(8, max(0, cores - 1))


def _finish(
    pixels: Tensor,
    labels: Tensor,
    normalization: Normalization,
    train: schema.Train,
    device: torch.device,
) -> Batch:
    """Normalise a batch on the device. Copies `pixels`, whose memory will be overwritten."""
    if device.type == "cuda":
        pixels = pixels.pin_memory()  # the copy to the device is then asynchronous
        labels = labels.pin_memory()
    images = normalization(pixels.to(device, non_blocking=True))
    return arrange(images, train.channels_last), labels.to(device, non_blocking=True)
