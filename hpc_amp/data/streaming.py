"""Batches of image files that do not fit into memory. Threads decode them, and the device
normalises them.

The random changes of an image only depend on (seed, epoch, sample), not on the thread that decodes
it. An epoch can begin at any step without reading the images before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.decode import centre_view, training_view
from hpc_amp.data.imagefolder import Files
from hpc_amp.data.images import Normalization
from hpc_amp.data.memory import Batch, arrange, put
from hpc_amp.data.order import epoch_order, rank_share
from hpc_amp.data.readers import Readers
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData


class StreamedTraining(TrainingData):
    """Training batches of `files`, which `readers` decode to squares of `side` pixels."""

    def __init__(
        self,
        files: Files,
        side: int,
        readers: Readers,
        train: schema.Train,
        world: World,
        device: torch.device,
    ) -> None:
        self.samples = len(files.paths)
        self.steps_per_epoch = self.samples // train.batch_size
        self.files, self.side, self.readers = files, side, readers
        self.train, self.world, self.device = train, world, device
        self.normalization = Normalization.imagenet().to(device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        train, augment = self.train, self.train.data.augment
        order = epoch_order(self.samples, train.seed, epoch)
        steps = rank_share(order, train.batch_size, self.world.rank, self.world.size)[start:]
        size = train.batch_size // self.world.size // train.accumulate

        def view(sample: tuple[str, str]) -> Tensor:
            path, seed = sample
            return training_view(path, seed, self.side, crop=augment.crop > 0, flip=augment.flip)

        batches = (
            [(self.files.paths[at], f"{train.seed} {epoch} {at}") for at in step.tolist()]
            for step in steps
        )
        for step, images in zip(steps, self.readers.read(view, batches), strict=True):
            labels = [self.files.labels[at] for at in step.tolist()]
            batch = _collate(images, labels, self.normalization, train, self.device)
            yield list(zip(*(part.split(size) for part in batch), strict=True))

    def close(self) -> None:
        """End the threads, which evaluations use as well."""
        self.readers.close()


def streamed_evaluation(
    files: Files,
    side: int,
    readers: Readers,
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
    batches = (files.paths[part] for part in parts)
    views = readers.read(lambda path: centre_view(path, side), batches)
    for part, images in zip(parts, views, strict=True):
        yield _collate(images, files.labels[part], normalization, train, device)


def _collate(
    images: list[Tensor],
    labels: list[int],
    normalization: Normalization,
    train: schema.Train,
    device: torch.device,
) -> Batch:
    """A batch of `images`, each uint8 [3, H, W], normalised on the device."""
    # The images have the channels of a pixel as neighbours in memory, and so has the batch.
    pixels = torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)
    classes = torch.tensor(labels)
    return arrange(normalization(put(pixels, device)), train.channels_last), put(classes, device)
