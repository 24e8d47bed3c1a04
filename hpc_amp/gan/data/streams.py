"""Batches by position: training, and evaluation by shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from hpc_amp.config.schema import Train
from hpc_amp.data.memory import put
from hpc_amp.data.order import rank_share
from hpc_amp.data.readers import Readers
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.batches import sample_seeds
from hpc_amp.gan.data.sets import Batch, Members, SampleSet
from hpc_amp.tasks.base import TrainingData

EVALUATION = "evaluation"
"""What stands for the epoch in the seeds of an evaluation."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where batches go to, and by which rank they are used."""

    train: Train
    world: World
    device: torch.device

    def put(self, samples: list[Members]) -> Members:
        """The members of a batch on the device, images as float32 from -1 to 1."""
        return {name: self._put([sample[name] for sample in samples]) for name in samples[0]}

    def _put(self, parts: list[Tensor]) -> Tensor:
        stacked = put(torch.stack(parts), self.device)
        if stacked.ndim < 4 or stacked.dtype != torch.uint8:
            return stacked
        last = self.train.channels_last and stacked.ndim == 4
        order = torch.channels_last if last else torch.contiguous_format
        return stacked.to(torch.float32, memory_format=order).div_(127.5).sub_(1.0)


class GanTraining(TrainingData, Generic[Batch]):
    """Training batches of `samples` by position."""

    def __init__(self, samples: SampleSet[Batch], readers: Readers, place: Place) -> None:
        self.set = samples
        self.readers = readers
        self.place = place
        self.samples = samples.samples
        self.steps_per_epoch = self.samples // place.train.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """This rank's share of each global batch of `epoch` from step `start` on, as a list of
        `accumulate` micro-batches. Raises DataError."""
        train, world = self.place.train, self.place.world
        positions = torch.arange(self.samples)
        steps = rank_share(positions, train.batch_size, world.rank, world.size)[start:].tolist()
        order = self.set.order(train.seed, epoch).tolist()
        size = train.batch_size // world.size // train.accumulate
        for samples, seeds in read(self.set, self.readers, order, steps, (train.seed, epoch)):
            yield [
                self.set.batch(self.place.put(samples[first : first + size]), part)
                for first, part in zip(range(0, len(samples), size), seeds.split(size), strict=True)
            ]

    def unchanged(self, most: int) -> Iterator[Batch]:
        """This rank's share of at most `most` training samples, without random changes, always the
        same: they are evenly spread over the set. Raises DataError."""
        return evaluate_set(self.set, self.readers, self.place, -(-self.samples // most))

    def close(self) -> None:
        """End the threads, of the evaluation too."""
        self.readers.close()


def evaluate_set(
    samples: SampleSet[Batch], readers: Readers, place: Place, every: int = 1
) -> Iterator[Batch]:
    """This rank's contiguous part of every `every`-th of `samples` in batches, without random
    changes. Parts differ by one sample at most, and each sample is in exactly one. Without
    `eval_batch_size`, batches are as large as those of training, for which there is memory. Raises
    DataError."""
    order = samples.fixed_order()[::every].tolist()
    world, count = place.world, len(order)
    # Rounded up: rank 0, which draws pictures, has a sample if there is one.
    first, last = (-(-count * rank // world.size) for rank in (world.rank, world.rank + 1))
    share = place.train.batch_size // world.size // place.train.accumulate
    size = place.train.eval_batch_size or max(1, share)
    parts = [list(range(at, min(at + size, last))) for at in range(first, last, size)]
    for own, seeds in read(samples, readers, order, parts, (place.train.seed, EVALUATION)):
        yield samples.batch(place.put(own), seeds)


def read(
    samples: SampleSet[Any],
    readers: Readers,
    order: list[list[int]],
    parts: list[list[int]],
    key: tuple[int, int | str],
) -> Iterator[tuple[list[Members], Tensor]]:
    """The samples at the positions of each part, with their seeds. `key` has the seed of the run
    and the epoch."""

    def content(sample: tuple[list[int], int]) -> Members:
        members, seed = sample
        return samples.read(members, seed, training=key[1] != EVALUATION)

    def batches() -> Iterator[list[tuple[list[int], int]]]:
        for part in parts:
            seeds = sample_seeds(*key, part).tolist()
            yield [(order[position], seed) for position, seed in zip(part, seeds, strict=True)]

    for part, members in zip(parts, readers.read(content, batches()), strict=True):
        yield members, sample_seeds(*key, part)
