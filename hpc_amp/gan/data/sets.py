"""The three kinds of sets: which images make up a sample, and how samples become a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.data.order import generator
from hpc_amp.gan.data.batches import ClassBatch, PairedBatch, UnpairedBatch
from hpc_amp.gan.data.config import ClassData, PairedData, UnpairedData
from hpc_amp.gan.data.reading import (
    ImageSource,
    MapSource,
    numbers_in,
    random_view,
    show,
    show_map,
    whole_view,
)

Batch = TypeVar("Batch")
Members = Mapping[str, Tensor]
"""The members of a sample by name: images uint8 [3, H, W], or [K, 3, H, W]; maps uint8 or int32
[H, W]; class numbers int32. Those of a batch have one more dimension, and images are float32."""
Truth = Callable[[int, int], Tensor]
"""The content of an image (its number) drawn as a class: uint8 [3, H, W]."""


class SampleSet(ABC, Generic[Batch]):
    """Samples of one kind for training or for evaluation, found by position."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts
        self.samples = max(counts)

    def order(self, seed: int, epoch: int) -> Tensor:
        """What the samples of an epoch of training consist of: int64 [samples, M], the number of
        one image from each of M collections. Each collection has a permutation of its own; a
        smaller one begins again in another permutation."""
        return torch.stack(
            [
                self._permutations(count, seed, epoch, place)
                for place, count in enumerate(self.counts)
            ],
            1,
        )

    def _permutations(self, count: int, *key: int) -> Tensor:
        cycles = range(-(-self.samples // count))
        parts = [torch.randperm(count, generator=generator("order", *key, at)) for at in cycles]
        return torch.cat(parts)[: self.samples]

    def fixed_order(self) -> Tensor:
        """The same for an evaluation: each collection in its own order, again and again."""
        return torch.stack([torch.arange(self.samples) % count for count in self.counts], 1)

    @abstractmethod
    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """One sample. Random changes depend on `seed` alone, and are made in training alone. Called
        in threads. Raises DataError."""

    @abstractmethod
    def batch(self, members: Members, seeds: Tensor) -> Batch:
        """A batch of members that lie on the device, images already as float32 from -1 to 1."""


# ---- pairs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairedParts:
    """The members of all pairs: what belongs to each other has the same number."""

    images: ImageSource
    labels: MapSource | None = None
    instances: MapSource | None = None
    inputs: ImageSource | None = None


class PairedSet(SampleSet[PairedBatch]):
    """Images with label maps or input images."""

    def __init__(self, parts: PairedParts, data: PairedData) -> None:
        super().__init__(len(parts.images))
        self.parts = parts
        self.data = data

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """One pair. All members show the same part. Raises DataError where a member cannot be read,
        members differ in size, or a label id is out of range."""
        (number,) = members
        parts = self.parts
        view = random_view(self.data, seed) if training else whole_view(self.data)
        image = parts.images.open(number)
        sample = {"images": show(image, view)}
        if parts.inputs is not None:
            picture = parts.inputs.open(number)
            self._check_size(number, parts.inputs, picture, image)
            sample["inputs"] = show(picture, view)
        for name, maps in (("labels", parts.labels), ("instances", parts.instances)):
            if maps is not None:
                numbers = maps.open(number)
                self._check_size(number, maps, numbers, image)
                if name == "labels":
                    check_labels(numbers_in(numbers), self.data, maps.name(number))
                sample[name] = show_map(numbers, view)
        return sample

    def _check_size(
        self,
        number: int,
        partners: ImageSource | MapSource,
        partner: Image.Image,
        image: Image.Image,
    ) -> None:
        if partner.size != image.size:
            raise DataError(
                "{} has {} x {} pixels, and its partner {} {} x {}".format(
                    *(partners.name(number), *partner.size),
                    *(self.parts.images.name(number), *image.size),
                )
            )

    def batch(self, members: Members, seeds: Tensor) -> PairedBatch:
        """The batch that tasks get."""
        labels, instances = members.get("labels"), members.get("instances")
        return PairedBatch(
            images=members["images"],
            seeds=seeds,
            labels=None if labels is None else number_labels(labels, self.data),
            instances=None if instances is None else instances.long(),
            inputs=members.get("inputs"),
        )


def check_labels(ids: Sequence[int], data: PairedData, name: str) -> None:
    """Raise DataError where one of the label ids of a file is out of range."""
    ignored = data.ignore_label
    last = data.labels - 1
    if ignored is not None and ignored <= last:
        last += 1  # it is one of them, and does not count
    for number in ids:
        if not 0 <= number <= last and number != ignored:
            allowed = f"0 to {last}"
            if ignored is not None and ignored > last:
                allowed += f", and {ignored} for pixels without a label"
            raise DataError(
                f"{name} has the label id {number}, and labels={data.labels}, "
                f"ignore_label={'null' if ignored is None else ignored} allow {allowed}"
            )


def number_labels(ids: Tensor, data: PairedData) -> Tensor:
    """Label ids of files as numbers of labels, int64: `data.labels` stands for pixels without a
    label, and ids larger than `ignore_label` count one less."""
    ids = ids.long()
    if data.ignore_label is None:
        return ids
    numbers = ids - (ids > data.ignore_label).long()
    return numbers.masked_fill_(ids == data.ignore_label, data.labels)


# ---- two domains ---------------------------------------------------------------------------------


class UnpairedSet(SampleSet[UnpairedBatch]):
    """Images of two domains. An epoch is as long as the larger domain."""

    def __init__(
        self,
        a: ImageSource,
        b: ImageSource,
        data: UnpairedData,
        truth: tuple[Callable[[int], Tensor], Callable[[int], Tensor]] | None = None,
    ) -> None:
        super().__init__(len(a), len(b))
        self.a, self.b = a, b
        self.data = data
        self.truth = truth

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """An image of each domain, each seen in its own way. Raises DataError."""
        sample = {}
        for name, images, number in zip("ab", (self.a, self.b), members, strict=True):
            view = random_view(self.data, seed, name) if training else whole_view(self.data)
            sample[name] = images.read(number, view)
        if not training:  # where a domain began again, its number is the smaller one
            sample["first"] = torch.tensor([number == max(members) for number in members])
        if self.truth is not None and not training:
            a_in_b, b_in_a = self.truth
            sample["a_in_b"], sample["b_in_a"] = a_in_b(members[0]), b_in_a(members[1])
        return sample

    def batch(self, members: Members, seeds: Tensor) -> UnpairedBatch:
        """The batch that tasks get."""
        return UnpairedBatch(seeds=seeds, **members)


# ---- classes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Classes:
    """Images, each of which belongs to a class."""

    images: ImageSource
    labels: Tensor
    """The class of each image: int64 [N]."""


class ClassTrainingSet(SampleSet[ClassBatch]):
    """Every training image is the content of one sample in an epoch; its style is shown by
    `references` images of another class, which the seed of the sample chooses."""

    def __init__(self, classes: Classes, data: ClassData) -> None:
        super().__init__(len(classes.images))
        self.classes = classes
        self.data = data
        self.numbers = [
            torch.nonzero(classes.labels == label).flatten().tolist()
            for label in range(int(classes.labels.max()) + 1)
        ]

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """A content image and its references. Raises DataError."""
        (content,) = members
        random = Random(f"{seed} style")
        content_class = int(self.classes.labels[content])
        style_class = random.randrange(len(self.numbers) - 1)
        style_class += style_class >= content_class
        references = random.sample(self.numbers[style_class], self.data.references)
        images = self.classes.images
        styles = [
            images.read(number, random_view(self.data, seed, f"reference {place}"))
            for place, number in enumerate(references)
        ]
        return {
            "content": images.read(content, random_view(self.data, seed, "content")),
            "content_class": torch.tensor(content_class, dtype=torch.int32),
            "style": torch.stack(styles),
            "style_class": torch.tensor(style_class, dtype=torch.int32),
        }

    def batch(self, members: Members, seeds: Tensor) -> ClassBatch:
        """The batch that tasks get."""
        return class_batch(members, seeds)


class ClassEvaluationSet(SampleSet[ClassBatch]):
    """Every image of the classes that were held out is the first reference of one sample; the other
    references are images of its class, and the content is an image of a class that was trained on.
    So `style[:, 0]` of all batches are the real images of those classes, each once."""

    def __init__(
        self, content: Classes, unseen: Classes, data: ClassData, truth: Truth | None = None
    ) -> None:
        super().__init__(len(unseen.images))
        self.content, self.unseen = content, unseen
        self.data = data
        self.truth = truth

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """A content image and its references. Raises DataError."""
        (first,) = members
        random = Random(f"{seed} style")
        style_class = int(self.unseen.labels[first])
        others = torch.nonzero(self.unseen.labels == style_class).flatten().tolist()
        others.remove(first)
        references = [first, *random.sample(others, self.data.references - 1)]
        content = random.randrange(len(self.content.images))
        view = whole_view(self.data)
        sample = {
            "content": self.content.images.read(content, view),
            "content_class": self.content.labels[content].int(),
            "style": torch.stack([self.unseen.images.read(each, view) for each in references]),
            "style_class": self.unseen.labels[first].int(),
        }
        if self.truth is not None:
            sample["truth"] = self.truth(content, style_class)
        return sample

    def batch(self, members: Members, seeds: Tensor) -> ClassBatch:
        """The batch that tasks get."""
        return class_batch(members, seeds)


def class_batch(members: Members, seeds: Tensor) -> ClassBatch:
    """The members of a batch, with class numbers as int64."""
    classes = {name: members[name].long() for name in ("content_class", "style_class")}
    return ClassBatch(seeds=seeds, **{**members, **classes})
