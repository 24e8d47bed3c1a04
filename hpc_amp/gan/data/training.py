"""From the configuration to batches: training by position, evaluation by shares, and the threads
that decode files.

Threads are enough: Pillow lets other threads run while it decodes and scales. Batches of the next
steps are read while one is used.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hpc_amp.config.schema import Train
from hpc_amp.data.errors import DataError
from hpc_amp.data.memory import arrange
from hpc_amp.data.order import rank_share
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.batches import ClassBatch, PairedBatch, UnpairedBatch, sample_seeds
from hpc_amp.gan.data.config import ClassData, PairedData, UnpairedData
from hpc_amp.gan.data.reading import DrawnImages, DrawnMaps
from hpc_amp.gan.data.sets import (
    Classes,
    ClassEvaluationSet,
    ClassTrainingSet,
    Members,
    PairedParts,
    PairedSet,
    SampleSet,
    UnpairedSet,
)
from hpc_amp.gan.data.synthetic import (
    CLASSES,
    DrawnClasses,
    Pairs,
    draw_domains,
    draw_pairs,
    labels_of,
)
from hpc_amp.tasks.base import TrainingData

Batch = TypeVar("Batch")
T = TypeVar("T")

AHEAD = 3
"""Batches that are read or being read while one is used."""
SYNTHETIC_LABELS = 8
EVALUATION = "evaluation"
"""What stands for the epoch in the seeds of an evaluation."""


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Batch]):
    """Data that is ready. `evaluation` starts a pass over this rank's share of the evaluation set,
    which is always the same."""

    name: str
    """What the run reports as its data."""
    synthetic: bool
    training: GanTraining[Batch]
    evaluation: Callable[[], Iterator[Batch]]
    evaluation_samples: int
    """Samples of an evaluation, over all ranks."""
    classes: tuple[str, ...] = ()
    """Names of the classes that are trained on, by their numbers."""
    unseen: tuple[str, ...] = ()
    """Names of the classes that are held out; their numbers come after those of `classes`."""
    labels_of: Callable[[Tensor], Tensor] | None = None
    """Synthetic pairs: which label each pixel of images [B, 3, H, W] looks like, int64 [B, H, W].
    """


# ---- one pass ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Readers:
    """The threads of a rank that read samples. Without one, samples are read when asked for."""

    count: int
    _threads: ThreadPoolExecutor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.count:
            self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="hpc-amp-reader")

    def read(self, batches: Iterable[list[Callable[[], T]]]) -> Iterator[list[T]]:
        """The results of each batch of calls, in order. An error of a call is raised where its
        batch is asked for."""
        if self._threads is None:
            for batch in batches:
                yield [call() for call in batch]
            return
        coming = iter(batches)
        waiting: deque[list[Future[T]]] = deque()
        try:
            while True:
                for batch in itertools.islice(coming, 1 + AHEAD - len(waiting)):
                    waiting.append([self._threads.submit(call) for call in batch])
                if not waiting:
                    return
                yield [future.result() for future in waiting.popleft()]
        finally:
            for future in itertools.chain.from_iterable(waiting):
                future.cancel()

    def close(self) -> None:
        """End the threads, after the calls that have begun."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


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
        stacked = torch.stack(parts)
        if self.device.type == "cuda":
            stacked = stacked.pin_memory()  # so that the copy to the device is not waited for
        stacked = stacked.to(self.device, non_blocking=True)
        if stacked.dtype != torch.uint8:
            return stacked
        images = stacked.float().div_(127.5).sub_(1.0)
        return arrange(images, self.train.channels_last and images.ndim == 4)


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

    def close(self) -> None:
        """End the threads, of the evaluation too."""
        self.readers.close()


def evaluate_set(samples: SampleSet[Batch], readers: Readers, place: Place) -> Iterator[Batch]:
    """This rank's contiguous part of `samples` in batches, without random changes. Parts differ by
    one sample at most, and each sample is in exactly one. Raises DataError."""
    world, count = place.world, samples.samples
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    size = place.train.eval_batch_size or max(1, place.train.batch_size // world.size)
    parts = [list(range(at, min(at + size, last))) for at in range(first, last, size)]
    order = samples.fixed_order().tolist()
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

    def calls() -> Iterator[list[Callable[[], Members]]]:
        for part in parts:
            seeds = sample_seeds(*key, part).tolist()
            yield [
                partial(samples.read, order[position], seed, training=key[1] != EVALUATION)
                for position, seed in zip(part, seeds, strict=True)
            ]

    for part, members in zip(parts, readers.read(calls()), strict=True):
        yield members, sample_seeds(*key, part)


# ---- from the configuration ----------------------------------------------------------------------


def prepare_paired(
    data: PairedData, train: Train, world: World, device: torch.device
) -> Prepared[PairedBatch]:
    """The pairs that `data` names. Called on every rank, with the process group up where there is
    more than one. Raises DataError on every rank."""
    labels = min(data.labels, SYNTHETIC_LABELS)
    config = data.synthetic

    def drawn(count: int, purpose: str) -> PairedSet:
        pairs = draw_pairs(count, labels, data.size, config.seed, purpose)
        return PairedSet(_parts(pairs, data), data)

    return _prepare(
        "SYNTHETIC pairs",
        drawn(config.train, "train"),
        drawn(config.test, "test"),
        Readers(0),
        Place(train, world, device),
        synthetic=True,
        labels_of=lambda images: labels_of(images, labels),
    )


def _parts(pairs: Pairs, data: PairedData) -> PairedParts:
    instances = DrawnMaps(pairs.instances) if data.instances else None
    if data.inputs == "labels":
        return PairedParts(DrawnImages(pairs.images), DrawnMaps(pairs.labels), instances)
    images, inputs = DrawnImages(pairs.images), DrawnImages(pairs.pictures)
    return PairedParts(images, instances=instances, inputs=inputs)


def prepare_unpaired(
    data: UnpairedData, train: Train, world: World, device: torch.device
) -> Prepared[UnpairedBatch]:
    """The two domains that `data` names. Called as `prepare_paired`."""
    config = data.synthetic
    drawn = draw_domains(data.size, config, config.train, "train")
    test = draw_domains(data.size, config, config.test, "test")
    truth = test.a_in_b, test.b_in_a
    return _prepare(
        "SYNTHETIC domains",
        UnpairedSet(DrawnImages(drawn.a), DrawnImages(drawn.b), data),
        UnpairedSet(DrawnImages(test.a), DrawnImages(test.b), data, truth),
        Readers(0),
        Place(train, world, device),
        synthetic=True,
    )


def prepare_classes(
    data: ClassData, train: Train, world: World, device: torch.device
) -> Prepared[ClassBatch]:
    """The classes that `data` names. Called as `prepare_paired`."""
    config = data.synthetic
    if config.classes > CLASSES:
        raise DataError(f"synthetic.classes: {config.classes} is more than {CLASSES}")
    drawn = DrawnClasses(data.size, config, data.unseen)
    seen = slice(0, drawn.training)
    unseen = slice(drawn.training, None)
    content = Classes(DrawnImages(drawn.pixels[seen]), drawn.labels[seen])
    held_out = Classes(DrawnImages(drawn.pixels[unseen]), drawn.labels[unseen])
    names = [f"class {number}" for number in range(config.classes)]
    return _prepare(
        "SYNTHETIC classes",
        ClassTrainingSet(content, data),
        ClassEvaluationSet(content, held_out, data, drawn.truth),
        Readers(0),
        Place(train, world, device),
        synthetic=True,
        classes=tuple(names[: -data.unseen]),
        unseen=tuple(names[-data.unseen :]),
    )


def _prepare(
    name: str,
    training: SampleSet[Batch],
    test: SampleSet[Batch],
    readers: Readers,
    place: Place,
    *,
    synthetic: bool,
    classes: tuple[str, ...] = (),
    unseen: tuple[str, ...] = (),
    labels_of: Callable[[Tensor], Tensor] | None = None,
) -> Prepared[Batch]:
    if training.samples < place.train.batch_size:
        raise DataError(
            f"batch_size: {place.train.batch_size} is more than the {training.samples} training "
            "samples"
        )
    return Prepared(
        name=name,
        synthetic=synthetic,
        training=GanTraining(training, readers, place),
        evaluation=lambda: evaluate_set(test, readers, place),
        evaluation_samples=test.samples,
        classes=classes,
        unseen=unseen,
        labels_of=labels_of,
    )
