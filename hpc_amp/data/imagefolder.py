"""Folders of image files: `train/<class>/*` and `test/<class>/*` (or `val`) below a folder
or in a tar file."""

from __future__ import annotations

import logging
import os
import posixpath
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from hpc_amp.config import schema
from hpc_amp.data import tars
from hpc_amp.data.decode import decode_all
from hpc_amp.data.errors import DataError
from hpc_amp.data.images import Images, ImageSet
from hpc_amp.data.names import folders_in, images_in, readable, test_folder
from hpc_amp.data.pictures import Location, upright_size
from hpc_amp.data.together import from_main, together
from hpc_amp.distributed.collect import gather
from hpc_amp.distributed.world import World
from hpc_amp.models.build import SMALL_IMAGE

log = logging.getLogger(__name__)

PROBED = 256
"""How many images, spread over the set, are opened to find out whether all have one small size."""
_EXPECTED = "expected train/<class>/* and test/<class>/* (or val)"


@dataclass(frozen=True, slots=True)
class Files:
    """The image files of a split: where they are, and the number of the class of each."""

    images: Sequence[Location]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class Folder:
    """The content of a data root."""

    name: str
    classes: list[str]
    train: Files
    test: Files


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """How images are used.

    `in_memory`: kept in memory, or else read again in each epoch.
    `height`, `width`: the size in pixels.
    `scale`: whether they are resized to it.
    """

    in_memory: bool
    height: int
    width: int
    scale: bool


def missing(root: Path) -> str | None:
    """What is missing below `root`, as a message, or None. A file is taken for an archive, in which
    `scan` looks. Raises DataError where that cannot be seen."""
    with readable(root):
        if root.is_file():
            return None
        if not (root / "train").is_dir():
            return f"no image folder in {root}: {_EXPECTED}"
        if test_folder(root) is None:
            return f"no test images in {root}: expected test/<class>/* (or val)"
    return None


def scan(root: Path) -> Folder:
    """List the files below `root`. Raises DataError if a class is empty, or if the classes of
    training and test images differ."""
    if root.is_file():
        return _scan_archive(root)
    test = test_folder(root) or root / "test"
    train, held_out = _classes(root / "train"), _classes(test)
    _check_equal(train, held_out, root, test.name)
    return Folder(
        root.resolve().name,
        list(train),
        Files([*chain(*train.values())], _labels(train)),
        Files([*chain(*held_out.values())], _labels(held_out)),
    )


def _classes(folder: Path) -> dict[str, list[str]]:
    """The paths of the images of each class, those of a folder before those of the folders in it.
    Raises DataError if there is no class, or one without images."""
    classes: dict[str, list[str]] = {}
    for name in folders_in(folder):
        images = sorted(images_in(folder / name), key=os.path.split)
        if not images:
            raise DataError(f"no images in {folder / name}")
        classes[name] = [os.path.join(folder, name, image) for image in images]
    if not classes:
        raise DataError(f"no classes in {folder}: expected a folder for each")
    return classes


def _scan_archive(archive: Path) -> Folder:
    """The content of an archive, as that of the folder that was packed, wherever it is in it."""
    images = tars.images_in(archive)
    if not images:
        raise DataError(f"no images in {archive}: {_EXPECTED}")
    # All names are between these two, so they begin with the same folders.
    common = posixpath.commonpath([images.names[0], images.names[-1]])
    above = len(common.split("/")) if common else 0
    found: dict[str, dict[str, list[int]]] = {}
    for number, name in enumerate(images.names):
        folders = name.split("/")[above:-1]
        if len(folders) > 1:
            found.setdefault(folders[0], {}).setdefault(folders[1], []).append(number)
    test = "test" if "test" in found else "val"
    if "train" not in found or test not in found:
        raise DataError(f"no image folder in {archive}: {_EXPECTED}")
    train, held_out = dict(sorted(found["train"].items())), dict(sorted(found[test].items()))
    _check_equal(train, held_out, archive, test)

    def files(classes: dict[str, list[int]]) -> Files:
        numbers = [
            number
            for of_class in classes.values()
            for number in sorted(of_class, key=lambda number: os.path.split(images.names[number]))
        ]
        return Files(images.chosen(numbers), _labels(classes))

    return Folder(archive.resolve().stem, list(train), files(train), files(held_out))


def _check_equal(train: Collection[str], held_out: Collection[str], root: Path, test: str) -> None:
    """Raise DataError if the classes of the two splits differ."""
    odd = sorted({*train} ^ {*held_out})
    if odd:
        raise DataError(
            f"the classes below {root}/train and {root}/{test} differ: {', '.join(odd[:5])} "
            "exist in only one of them"
        )


def _labels(classes: Mapping[str, Sequence[object]]) -> list[int]:
    return [number for number, images in enumerate(classes.values()) for _ in images]


def plan(folder: Folder, data: schema.Data) -> ResizePlan:
    """Decide how the images are used, from the settings `data` and the sizes of some files. Raises
    DataError if the settings do not fit the files."""
    images = folder.train.images
    probed = images[:: max(1, len(images) // PROBED)]
    sizes = {upright_size(image) for image in probed} if data.image_size is None else set()
    if len(sizes) == 1:
        width, height = sizes.pop()
    else:
        width = height = data.image_size or 0
    fits = 0 < max(width, height) <= SMALL_IMAGE
    in_memory = fits if data.in_memory is None else data.in_memory
    if not in_memory:
        side = data.image_size or 224
        return ResizePlan(False, side, side, scale=True)
    if width == 0:
        raise DataError("data.in_memory: the images differ in size; set data.image_size as well")
    return ResizePlan(True, height, width, scale=data.image_size is not None)


def decode(folder: Folder, plan: ResizePlan) -> ImageSet:
    """Decode all images of `folder`."""

    def split(files: Files) -> Images:
        pixels = decode_all(files.images, plan.height, plan.width, scale=plan.scale)
        return Images(pixels, torch.tensor(files.labels))

    return ImageSet(
        f"ImageFolder {folder.name}", len(folder.classes), split(folder.train), split(folder.test)
    )


def look(root: Path, data: schema.Data, world: World) -> tuple[Folder, ResizePlan]:
    """List the files below `root` and decide how they are used, on rank 0 for all: on a shared file
    system, a million files that each rank lists are too many questions. Raises DataError as `scan`
    and `plan` do, and where a rank does not see `root`. A collective call."""

    def find() -> tuple[Folder, ResizePlan]:
        folder = scan(root)
        return folder, plan(folder, data)

    found = from_main(world, find)
    together(world, lambda: _check_visible(root))
    return found


def _check_visible(root: Path) -> None:
    if missing(root) is not None or not os.access(root, os.R_OK):
        raise DataError(f"the image folder {root} is not visible from every node")


def decode_once_per_node(folder: Folder, plan: ResizePlan, world: World) -> ImageSet:
    """Decode all images of `folder`. Returns them on every rank. A collective call.

    The first rank of each node decodes the images and writes them to a file on the node, which all
    ranks of the node map into memory, so the pixels are in its memory once. The file is deleted
    when all ranks have opened it; nothing is left behind, however the job ends. If a rank does not
    see the file, as in a container of its own, each rank decodes all images.
    """
    if world.local_size == 1:
        return together(world, lambda: decode(folder, plan))
    path = together(world, lambda: _write(folder, plan) if world.local_rank == 0 else None)
    leader = world.rank - world.local_rank
    shared = gather(world, path)[leader] or ""
    try:
        if all(gather(world, os.path.exists(shared))):
            return together(world, lambda: _map(shared))
    finally:
        if path is not None:
            os.unlink(path)
    if world.is_main:
        log.warning(
            "the ranks of a node do not share %s, so each of them keeps all images in its memory: "
            "bind a folder of the node into their containers, and set TMPDIR to it",
            tempfile.gettempdir(),
        )
    return together(world, lambda: decode(folder, plan))


def _write(folder: Folder, plan: ResizePlan) -> str:
    """Decode all images into a file on this node. Returns its path. Raises DataError if it does not
    fit."""
    images = decode(folder, plan)
    content = {
        "name": images.name,
        "classes": images.classes,
        "pixels": [images.train.pixels, images.test.pixels],
        "labels": [images.train.labels, images.test.labels],
    }
    handle, path = tempfile.mkstemp(prefix="hpc-amp-images-")
    os.close(handle)
    try:
        torch.save(content, path)
    except (OSError, RuntimeError) as error:
        os.unlink(path)
        raise DataError(
            f"the decoded images do not fit into {path}: {error}; set TMPDIR to a folder of the "
            "node with more space"
        ) from error
    return path


def _map(path: str) -> ImageSet:
    """Map the file of `_write` into memory."""
    content = torch.load(path, mmap=True, weights_only=True)
    train, test = map(Images, content["pixels"], content["labels"])
    return ImageSet(content["name"], content["classes"], train, test)
