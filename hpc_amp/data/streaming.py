"""Batches of image files that do not fit into memory: decoded ahead of their use, and normalised on
the device.

The random changes of an image only depend on (seed, epoch, sample), not on what decodes it. An
epoch can begin at any step without reading the images before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.decoders import Decoder, View
from hpc_amp.data.imagefolder import Files
from hpc_amp.data.images import Normalization
from hpc_amp.data.memory import Batch, arrange, put
from hpc_amp.data.order import epoch_order, rank_share
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData


class StreamedTraining(TrainingData):
    """Training batches of `files`, which `decoder` decodes."""

    def __init__(self, files: Files, decoder: Decoder, train: schema.Train, world: World) -> None:
        self.samples = len(files.images)
        self.steps_per_epoch = self.samples // train.batch_size
        self.decoder = decoder.name
        self.files, self._decoder, self.train, self.world = files, decoder, train, world
        self.normalization = Normalization.imagenet().to(decoder.device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        train, augment = self.train, self.train.data.augment
        order = epoch_order(self.samples, train.seed, epoch)
        steps = rank_share(order, train.batch_size, self.world.rank, self.world.size)[start:]
        size = train.batch_size // self.world.size // train.accumulate

        def view(at: int) -> View:
            seed = f"{train.seed} {epoch} {at}"
            return View(self.files.images[at], seed, augment.crop > 0, augment.flip)

        batches = ([view(at) for at in step.tolist()] for step in steps)
        for step, pixels in zip(steps, self._decoder.read(batches), strict=True):
            labels = [self.files.labels[at] for at in step.tolist()]
            batch = _normalized(pixels, labels, self.normalization, train)
            yield list(zip(*(part.split(size) for part in batch), strict=True))

    def close(self) -> None:
        """End the threads, which evaluations use as well."""
        self._decoder.readers.close()


def streamed_evaluation(
    files: Files,
    decoder: Decoder,
    train: schema.Train,
    world: World,
    batch_size: int,
) -> Iterator[Batch]:
    """This rank's contiguous share of `files`, in batches, without random changes."""
    count = len(files.images)
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    parts = [slice(at, min(at + batch_size, last)) for at in range(first, last, batch_size)]
    normalization = Normalization.imagenet().to(decoder.device)
    batches = ([View(place) for place in files.images[part]] for part in parts)
    for part, pixels in zip(parts, decoder.read(batches), strict=True):
        yield _normalized(pixels, files.labels[part], normalization, train)


def _normalized(
    pixels: Tensor, labels: list[int], normalization: Normalization, train: schema.Train
) -> Batch:
    """A batch of `pixels`, uint8 [N, 3, H, W] on the device."""
    classes = put(torch.tensor(labels), pixels.device)
    return arrange(normalization(pixels), train.channels_last), classes
