"""From the configuration to data that is ready: find the files, or draw a synthetic set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from hpc_amp.config.schema import Train
from hpc_amp.data.readers import Readers, reader_count
from hpc_amp.data.together import from_main
from hpc_amp.distributed.world import World
from hpc_amp.gan.collapse import ONE_IMAGE
from hpc_amp.gan.data.batches import ClassBatch, PairedBatch, UnpairedBatch
from hpc_amp.gan.data.config import ClassData, GanData, PairedData, UnpairedData
from hpc_amp.gan.data.folders import ClassFiles, PairedFiles
from hpc_amp.gan.data.reading import DrawnImages, DrawnMaps, ImageFiles, MapFiles
from hpc_amp.gan.data.sets import (
    Batch,
    Classes,
    ClassEvaluationSet,
    ClassTrainingSet,
    PairedParts,
    PairedSet,
    SampleSet,
    UnpairedSet,
)
from hpc_amp.gan.data.streams import GanTraining, Place, evaluate_set
from hpc_amp.gan.data.synthetic import (
    COLOURS,
    DrawnClasses,
    DrawnDomains,
    DrawnPairs,
    Pair,
    labels_of,
)
from hpc_amp.gan.video.batches import VideoBatch
from hpc_amp.gan.video.config import ReferenceData, VideoData
from hpc_amp.gan.video.flows import FlowSource, estimated_flows, read_flow
from hpc_amp.gan.video.folders import VideoFiles
from hpc_amp.gan.video.points import PointSource, read_points
from hpc_amp.gan.video.poses import PoseSource, read_poses
from hpc_amp.gan.video.references import ReferenceSet, Truth
from hpc_amp.gan.video.sets import VideoSet
from hpc_amp.gan.video.synthetic import DrawnIdentities, DrawnVideos, VideoFrame

log = logging.getLogger(__name__)

PROBED = 4
"""Samples of each set that are read before the training begins."""


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Batch]):
    """Data that is ready. `evaluation` starts a pass over this rank's share of the evaluation set,
    which is always the same."""

    name: str
    """What the run reports as its data."""
    synthetic: bool
    training: GanTraining[Batch]
    evaluation: Callable[[], Iterator[Batch]]
    classes: tuple[str, ...] = ()
    """Names of the classes that are trained on, by their numbers."""
    unseen: tuple[str, ...] = ()
    """Names of the classes that are held out; their numbers come after those of `classes`."""
    labels_of: Callable[[Tensor], Tensor] | None = None
    """Synthetic pairs: which label each pixel of images [B, 3, H, W] looks like, int64 [B, H, W].
    """


def prepare_paired(
    data: PairedData, train: Train, world: World, device: torch.device
) -> Prepared[PairedBatch]:
    """The pairs that `data` names. Called on every rank, with the process group up where there is
    more than one. Raises DataError on every rank."""
    place = _place(data, train, world, device)
    if data.name == "synthetic":
        training, test = (PairedSet(_drawn_parts(data, split), data) for split in ("train", "test"))
        return _prepare(
            "SYNTHETIC pairs",
            training,
            test,
            Readers(0),
            place,
            synthetic=True,
            labels_of=partial(labels_of, labels=min(data.labels, len(COLOURS))),
        )
    found = from_main(world, lambda: data.scan(train))
    training, test = (PairedSet(_parts(files), data) for files in (found.train, found.test))
    return _prepare(data.folder.name, training, test, _readers(data, world), place)


def _drawn_parts(data: PairedData, split: str) -> PairedParts:
    config = data.synthetic
    count = config.train if split == "train" else config.test
    pairs = DrawnPairs(count, min(data.labels, len(COLOURS)), data.size, config.seed, split)
    return _parts_of(pairs, pairs.picture, data)


def _parts_of(
    drawn: Sequence[Pair] | Sequence[VideoFrame], picture: Callable[[int], Tensor], data: PairedData
) -> PairedParts:
    """Drawn images with what a generator makes them from: their maps, or the image `picture`."""
    from_labels = data.inputs == "labels"

    def ids(number: int) -> Tensor:
        labels = drawn[number].labels
        if data.ignore_label is None:
            return labels
        return labels + (labels >= data.ignore_label)  # as in files: no pixel has that id

    return PairedParts(
        DrawnImages(len(drawn), lambda number: drawn[number].image),
        labels=DrawnMaps(ids) if from_labels else None,
        instances=DrawnMaps(lambda number: drawn[number].instances) if data.instances else None,
        inputs=None if from_labels else DrawnImages(len(drawn), picture),
    )


def _parts(files: PairedFiles) -> PairedParts:
    halves = files.halves or (None, None)
    return PairedParts(
        ImageFiles(files.images, halves[0]),
        labels=None if files.labels is None else MapFiles(files.labels),
        instances=None if files.instances is None else MapFiles(files.instances, colours=True),
        inputs=None if files.inputs is None else ImageFiles(files.inputs, halves[1]),
    )


def prepare_videos(
    data: VideoData, train: Train, world: World, device: torch.device
) -> Prepared[VideoBatch]:
    """The sequences that `data` names. Called as `prepare_paired`."""
    place = _place(data, train, world, device)
    if data.name == "synthetic":
        labels = min(data.labels, len(COLOURS))
        training, test = (drawn_videos(data, labels, split) for split in ("train", "test"))
        return _prepare(
            "SYNTHETIC videos",
            training,
            test,
            Readers(0),
            place,
            synthetic=True,
            labels_of=partial(labels_of, labels=labels),
        )
    found = from_main(world, lambda: data.scan(train))
    training, test = (_video_files(files, data) for files in (found.train, found.test))
    return _prepare(data.folder.name, training, test, _readers(data, world), place)


def drawn_videos(data: VideoData, labels: int, split: str) -> VideoSet:
    """The sequences of a split of a synthetic set, with `labels` labels."""
    count = data.synthetic.train if split == "train" else data.synthetic.test
    drawn = DrawnVideos(count, labels, data.size, data.synthetic, split)
    parts = _parts_of(drawn.frames, drawn.picture, data)
    return VideoSet(parts, drawn.lengths, data, *_drawn_truth(drawn, parts, data))


def _drawn_truth(
    drawn: DrawnVideos, parts: PairedParts, data: VideoData
) -> tuple[FlowSource | None, PointSource | None]:
    """Flows and points of a synthetic set, as far as `data` wants them."""
    frames = drawn.frames

    def flow(number: int) -> tuple[Tensor, Tensor]:
        return frames[number].flow, frames[number].known

    def points(number: int, size: tuple[int, int]) -> Tensor:
        return frames[number].points.long()

    known = flow if data.flow == "known" else None
    return _flows(known, parts, data), points if data.points == "known" else None


def _flows(known: FlowSource | None, parts: PairedParts, data: VideoData) -> FlowSource | None:
    """The flows that `data` wants; `known` are those of the data itself, if it wants these."""
    return known if data.flow in ("known", "none") else estimated_flows(parts.images, data.flow)


def _video_files(files: VideoFiles, data: VideoData) -> VideoSet:
    parts = _parts(files)
    return VideoSet(parts, files.lengths, data, *_truth_files(files, parts, data))


def _truth_files(
    files: VideoFiles, parts: PairedParts, data: VideoData
) -> tuple[FlowSource | None, PointSource | None, PoseSource | None]:
    """Flows, points and poses in files, as far as `data` wants them."""

    def source(paths: list[str] | None, read: Callable[..., Any]) -> Callable[..., Any] | None:
        return None if paths is None else lambda number, *size: read(paths[number], *size)

    return (
        _flows(source(files.flows, read_flow), parts, data),
        source(files.points, read_points),
        source(files.poses, lambda path: read_poses(Path(path))),
    )


def prepare_references(
    data: ReferenceData, train: Train, world: World, device: torch.device
) -> Prepared[VideoBatch]:
    """The sequences that `data` names, as `ReferenceBatch`. Called as `prepare_paired`."""
    place = _place(data, train, world, device)
    if data.name == "synthetic":
        training, test = (drawn_identities(data, split) for split in ("train", "test"))
        return _prepare("SYNTHETIC identities", training, test, Readers(0), place, synthetic=True)
    found = from_main(world, lambda: data.scan(train))
    training, test = (_reference_files(files, data) for files in (found.train, found.test))
    return _prepare(data.folder.name, training, test, _readers(data, world), place)


def _reference_files(files: VideoFiles, data: ReferenceData) -> ReferenceSet:
    parts, own = _parts(files), files.references
    given = None if own is None else (_parts(own), own.lengths)
    return ReferenceSet(parts, files.lengths, data, *_truth_files(files, parts, data), given=given)


def drawn_identities(data: ReferenceData, split: str) -> ReferenceSet:
    """The sequences of a split of a synthetic set, with their references."""
    config, labels = data.synthetic, min(data.labels, len(COLOURS))
    count = config.train if split == "train" else config.test
    drawn = DrawnIdentities(count, labels, data.size, config, split)
    parts = _parts_of(drawn.frames, drawn.picture, data)
    return ReferenceSet(
        parts,
        drawn.lengths,
        data,
        *_drawn_truth(drawn, parts, data),
        truth=Truth(drawn.flow_between, drawn.colours),
    )


def prepare_unpaired(
    data: UnpairedData, train: Train, world: World, device: torch.device
) -> Prepared[UnpairedBatch]:
    """The two domains that `data` names. Called as `prepare_paired`."""
    place = _place(data, train, world, device)
    if data.name == "synthetic":
        drawn, held_out = (
            DrawnDomains(data.size, data.synthetic, count, split)
            for count, split in ((data.synthetic.train, "train"), (data.synthetic.test, "test"))
        )
        training = UnpairedSet(*_drawn_images(drawn), data)
        truth = held_out.a_in_b, held_out.b_in_a
        test = UnpairedSet(*_drawn_images(held_out), data, truth)
        return _prepare("SYNTHETIC domains", training, test, Readers(0), place, synthetic=True)
    found = from_main(world, lambda: data.scan(train))
    training, test = (
        UnpairedSet(ImageFiles(files.a), ImageFiles(files.b), data)
        for files in (found.train, found.test)
    )
    return _prepare(data.folder.name, training, test, _readers(data, world), place)


def _drawn_images(domains: DrawnDomains) -> tuple[DrawnImages, DrawnImages]:
    a, b = domains.a, domains.b
    return DrawnImages(len(a), a.__getitem__), DrawnImages(len(b), b.__getitem__)


def prepare_classes(
    data: ClassData, train: Train, world: World, device: torch.device
) -> Prepared[ClassBatch]:
    """The classes that `data` names. Called as `prepare_paired`."""
    place = _place(data, train, world, device)
    if data.name == "synthetic":
        return _drawn_classes(data, place)
    found = from_main(world, lambda: data.scan(train))
    content, held_out = _classes(found.content), _classes(found.test)
    return _prepare(
        data.folder.name,
        ClassTrainingSet(_classes(found.train), data),
        ClassEvaluationSet(content, held_out, data),
        _readers(data, world),
        place,
        classes=found.classes,
        unseen=found.unseen,
    )


def _drawn_classes(data: ClassData, place: Place) -> Prepared[ClassBatch]:
    config = data.synthetic
    drawn = DrawnClasses(data.size, config, data.unseen)
    names = tuple(f"class {number}" for number in range(config.classes))
    first = drawn.training
    content, held_out = (
        Classes(DrawnImages(len(labels), draw), labels)
        for labels, draw in (
            (drawn.labels[:first], drawn.images.__getitem__),
            (drawn.labels[first:], lambda number: drawn.images[first + number]),
        )
    )
    return _prepare(
        "SYNTHETIC classes",
        ClassTrainingSet(content, data),
        ClassEvaluationSet(content, held_out, data, drawn.truth),
        Readers(0),
        place,
        synthetic=True,
        classes=names[: -data.unseen],
        unseen=names[-data.unseen :],
    )


def _classes(files: ClassFiles) -> Classes:
    return Classes(ImageFiles(files.paths), torch.tensor(files.labels))


def _place(data: GanData, train: Train, world: World, device: torch.device) -> Place:
    data.check_keys(train)
    return Place(train, world, device)


def _readers(data: GanData, world: World) -> Readers:
    return Readers(reader_count(data.workers, world))


def _prepare(
    name: str,
    training: SampleSet[Batch],
    test: SampleSet[Batch],
    readers: Readers,
    place: Place,
    *,
    synthetic: bool = False,
    classes: tuple[str, ...] = (),
    unseen: tuple[str, ...] = (),
    labels_of: Callable[[Tensor], Tensor] | None = None,
) -> Prepared[Batch]:
    from_main(place.world, lambda: _probe(training, test))
    if place.world.is_main and 1 in test.counts and not isinstance(test, VideoSet):
        log.warning(ONE_IMAGE.format("there is one test image"))
    return Prepared(
        name=name,
        synthetic=synthetic,
        training=GanTraining(training, readers, place),
        evaluation=lambda: evaluate_set(test, readers, place),
        classes=classes,
        unseen=unseen,
        labels_of=labels_of,
    )


def _probe(*sets: SampleSet[Any]) -> None:
    """Read some samples of each set, so that what is wrong with all files shows before the training
    begins."""
    for samples in sets:
        order = samples.fixed_order()
        for position in range(0, samples.samples, max(1, samples.samples // PROBED)):
            samples.read(order[position].tolist(), 0, training=False)
