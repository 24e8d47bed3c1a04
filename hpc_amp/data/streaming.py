"""Batches from image files that are too large for memory: loader processes decode them, the device
normalises them.

The random numbers of an image depend on (seed, epoch, sample) alone, not on the process that
decodes it, and the loader starts at the step asked for without reading the ones before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpc_amp.config import schema
from hpc_amp.data.decode import centre_box, open_rgb, random_box, resize, to_pixels
from hpc_amp.data.imagefolder import Files
from hpc_amp.data.images import Normalization
from hpc_amp.data.memory import Batch, arrange
from hpc_amp.data.order import epoch_order, rank_share
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import TrainingData

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
Key = tuple[int, int]
"""Epoch and sample."""
CENTRE = 224 / 256
"""Part of the shorter side that an evaluation sees: the usual resize to 256 and crop to 224."""


class _Decoded(Dataset[tuple[Tensor, int]]):
    """Pixels, uint8 [3, side, side], and label by (epoch, sample)."""

    def __init__(self, files: Files, side: int, augment: schema.Augment | None, seed: int) -> None:
        self.files = files
        self.side = side
        self.augment = augment
        self.seed = seed

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, sample = key
        image = open_rgb(self.files.paths[sample])
        random = Random(f"{self.seed} {epoch} {sample}")
        cropped = self.augment is not None and self.augment.crop > 0
        box = (
            random_box(image.width, image.height, random)
            if cropped
            else centre_box(image.width, image.height, CENTRE)
        )
        image = resize(image, self.side, box)
        if self.augment is not None and self.augment.flip and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_pixels(image), self.files.labels[sample]


class _Steps:
    """Sampler of whole batches: this rank's samples of `epoch` from step `start` on."""

    def __init__(self, samples: int, train: schema.Train, world: World) -> None:
        self.samples = samples
        self.train = train
        self.world = world
        self.epoch = 0
        self.start = 0

    def __iter__(self) -> Iterator[list[Key]]:
        order = epoch_order(self.samples, self.train.seed, self.epoch)
        steps = rank_share(order, self.train.batch_size, self.world.rank, self.world.size)
        for step in steps[self.start :]:
            yield [(self.epoch, sample) for sample in step.tolist()]

    def __len__(self) -> int:
        return self.samples // self.train.batch_size - self.start


class StreamedTraining(TrainingData):
    """Training batches from `files`, scaled to squares of `side` pixels."""

    def __init__(
        self, files: Files, side: int, train: schema.Train, world: World, device: torch.device
    ) -> None:
        self.samples = len(files.paths)
        self.steps_per_epoch = self.samples // train.batch_size
        self.train = train
        self.device = device
        self.normalization = Normalization.imagenet().to(device)
        self._steps = _Steps(self.samples, train, world)
        workers = worker_count(train.data, world)
        self._loader = _loader(
            _Decoded(files, side, train.data.augment, train.seed),
            self._steps,
            workers,
            device,
            persistent_workers=workers > 0,
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches."""
        self._steps.epoch, self._steps.start = epoch, start
        parts = self.train.accumulate
        for pixels, labels in _begin(self._loader):
            images, labels = _finish(pixels, labels, self.normalization, self.train, self.device)
            size = len(labels) // parts
            yield list(zip(images.split(size), labels.split(size), strict=True))


def streamed_evaluation(
    files: Files,
    side: int,
    train: schema.Train,
    world: World,
    device: torch.device,
    batch_size: int,
) -> Iterator[Batch]:
    """This rank's contiguous part of `files` in batches, without random changes."""
    count = len(files.paths)
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    keys = [(0, sample) for sample in range(first, last)]
    batches = [keys[at : at + batch_size] for at in range(0, len(keys), batch_size)]
    normalization = Normalization.imagenet().to(device)
    dataset = _Decoded(files, side, None, train.seed)
    for pixels, labels in _begin(
        _loader(dataset, batches, worker_count(train.data, world), device)
    ):
        yield _finish(pixels, labels, normalization, train, device)


def worker_count(data: schema.Data, world: World) -> int:
    """Loader processes of this rank: `data.workers`, or its cores less one, at most 8."""
    if data.workers is not None:
        return data.workers
    cores = len(os.sched_getaffinity(0))
    if cores == os.cpu_count():  # not bound: the ranks of the node share all cores
        cores //= world.local_size
    return min(8, max(0, cores - 1))


def _loader(
    dataset: _Decoded, batches: Any, workers: int, device: torch.device, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=_ignore_signals,
        # Without a generator of its own each epoch would take a number from the global one, and a
        # resumed run would differ from one that never stopped.
        generator=torch.Generator(),
        **options,
    )


def _begin(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the loader processes. Until they ignore signals they have them blocked, as they inherit
    that: torch sets a handler for SIGTERM in between. Another thread of this process takes those
    that come meanwhile, or this one afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_signals(worker: int) -> None:
    # Schedulers signal all processes of a job. A loader that died would take the checkpoint, which
    # the training process is about to write, with it.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _finish(
    pixels: Tensor,
    labels: Tensor,
    normalization: Normalization,
    train: schema.Train,
    device: torch.device,
) -> Batch:
    images = normalization(pixels.to(device, non_blocking=True))
    return arrange(images, train.channels_last), labels.to(device, non_blocking=True)
