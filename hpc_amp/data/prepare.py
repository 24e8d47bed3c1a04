"""From settings to batches: find, download or generate the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hpc_amp.config import schema
from hpc_amp.data import imagefolder
from hpc_amp.data.decoder_dali import DaliDecoder
from hpc_amp.data.decoders import Decoder, PillowDecoder
from hpc_amp.data.errors import DataError
from hpc_amp.data.images import ImageSet, Normalization
from hpc_amp.data.memory import Batch, MemoryTraining, memory_evaluation
from hpc_amp.data.names import readable
from hpc_amp.data.readers import Readers, reader_count
from hpc_amp.data.sources import PUBLIC_SETS
from hpc_amp.data.streaming import StreamedTraining, streamed_evaluation
from hpc_amp.data.synthetic import synthetic_set
from hpc_amp.data.together import from_main, together
from hpc_amp.distributed.collect import gather
from hpc_amp.distributed.world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data that is ready for training.

    `name`: the name for reports.
    `synthetic`: whether the images are synthetic.
    `channels`, `image_size`: the shape of the images; the size is the longer side in pixels.
    `evaluation`: begins a pass over this rank's share of the test images.
    """

    name: str
    synthetic: bool
    classes: int
    channels: int
    image_size: int
    training: MemoryTraining | StreamedTraining
    evaluation: Callable[[], Iterator[Batch]]


def prepare(train: schema.Train, world: World, device: torch.device) -> PreparedData:
    """Prepare the data that `train.data` names. A collective call; if there are several ranks, the
    process group must exist.

    Only rank 0 looks for the files, downloads them, and decides whether synthetic images replace
    them. Raises DataError, with one line for the user, on every rank.
    """
    data = train.data
    if data.name == "synthetic":
        return _in_memory(synthetic_set(data.synthetic), train, world, device)
    problem = from_main(world, lambda: _missing(data))
    if problem is not None and data.if_missing == "synthetic":
        if world.is_main:
            log.warning("SYNTHETIC images stand in for %s: %s", data.name, problem)
        return _in_memory(synthetic_set(data.synthetic), train, world, device)
    if problem is not None:
        raise DataError(
            f"{problem}; in a job file, data.if_missing=synthetic takes synthetic images"
        )
    root = _root(data)
    if data.name != "imagefolder":
        images = together(world, lambda: PUBLIC_SETS[data.name].load(root))
        return _in_memory(images, train, world, device)
    folder, plan = imagefolder.look(root, data, world)
    if plan.in_memory:
        images = imagefolder.decode_once_per_node(folder, plan, world)
        return _in_memory(images, train, world, device)
    return _streamed(folder, plan, train, world, device)


def _root(data: schema.Data) -> Path:
    return Path(data.root).expanduser().absolute()


def _missing(data: schema.Data) -> str | None:
    """Why the data is missing, as a message, or None. Tries to download it. Raises DataError where
    it cannot be seen whether there is any."""
    root = _root(data)
    if data.name == "imagefolder":
        return imagefolder.missing(root)
    source = PUBLIC_SETS[data.name]
    with readable(root):
        if source.find(root) is not None:
            return None
    absent = f"{source.name} is not in {root} (expected the folder {source.folder})"
    if not data.download:
        return f"{absent}, and data.download is off"
    log.info("downloading %s to %s", source.name, root)
    try:
        source.download(root)
    except Exception as error:  # torchvision does not document what it raises
        return f"{absent}, and the download failed: {' '.join(str(error).split())}"
    return None


def _in_memory(
    images: ImageSet, train: schema.Train, world: World, device: torch.device
) -> PreparedData:
    """Data whose images are in memory. They are copied to the device."""
    _check_size(len(images.train), train)
    normalization = Normalization.measure(images.train.pixels)
    test = images.test.to(device)
    return PreparedData(
        name=images.name,
        synthetic=images.name == "SYNTHETIC",
        classes=images.classes,
        channels=images.train.pixels.shape[1],
        image_size=max(images.train.pixels.shape[2:]),
        training=MemoryTraining(images.train.to(device), normalization, train, world),
        evaluation=lambda: memory_evaluation(
            test,
            normalization,
            world,
            batch_size=evaluation_batch_size(train, world),
            channels_last=train.channels_last,
        ),
    )


def _streamed(
    folder: imagefolder.Folder,
    plan: imagefolder.ResizePlan,
    train: schema.Train,
    world: World,
    device: torch.device,
) -> PreparedData:
    """Data whose images are read from files in each epoch. A collective call."""
    _check_size(len(folder.train.images), train)
    decoder = choose_decoder(plan.height, train.data, world, device)
    size = evaluation_batch_size(train, world)
    return PreparedData(
        name=f"ImageFolder {folder.name}",
        synthetic=False,
        classes=len(folder.classes),
        channels=3,
        image_size=plan.height,
        training=StreamedTraining(folder.train, decoder, train, world),
        evaluation=lambda: streamed_evaluation(folder.test, decoder, train, world, size),
    )


def choose_decoder(side: int, data: schema.Data, world: World, device: torch.device) -> Decoder:
    """The decoder that `data.decoder` names, the same on all ranks. Starts the threads that read.

    `auto` is DALI on a GPU, unless a rank cannot use it, and otherwise Pillow. Raises DataError if
    DALI is asked for and a rank cannot use it. A collective call.
    """
    count = reader_count(data.workers, world)
    readers = Readers(count)
    if data.decoder == "dali" or (data.decoder == "auto" and device.type == "cuda"):
        dali = DaliDecoder(side, readers, device, threads=max(1, count))
        problem = next((found for found in gather(world, dali.problem()) if found), None)
        if problem is None:
            return dali
        if data.decoder == "dali":
            raise DataError(
                f"train.data.decoder=dali: {problem}; train.data.decoder=pillow works everywhere"
            )
        if world.is_main:
            log.warning("Pillow decodes the images: %s", problem)
    return PillowDecoder(side, readers, device)


def evaluation_batch_size(train: schema.Train, world: World) -> int:
    """The number of images of a rank in one evaluation batch."""
    return train.eval_batch_size or max(256, train.batch_size // world.size)


def _check_size(samples: int, train: schema.Train) -> None:
    """Raise DataError if there is not a single global batch."""
    if samples < train.batch_size:
        raise DataError(
            f"batch_size: {train.batch_size} is more than the {samples} training images"
        )
