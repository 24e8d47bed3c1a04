"""The files of a data set, in each of the known layouts. Only names are looked at here.

Standard library only: the machine that submits looks, too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_NOT_READ = {".avi", ".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".mkv", ".mov", ".mp4"}
"""Endings of pictures and videos that are left out."""
_CITYSCAPES = re.compile(r"_(leftImg8bit|gt(Fine|Coarse)_(labelIds|labelTrainIds|instanceIds))$")
"""Endings of names by which partners in Cityscapes differ."""
_HELD_OUT = ("test", "val")
"""Names of the split for evaluation."""


class FolderError(ValueError):
    """A folder does not have the files that are looked for. The message is for the user."""


@dataclass(frozen=True, slots=True)
class PairedFiles:
    """The paths of a split, partners at the same position."""

    images: list[str]
    labels: list[str] | None = None
    instances: list[str] | None = None
    inputs: list[str] | None = None
    halves: tuple[int, int] | None = None
    """Where a file has two images side by side: which one, 0 or 1, is the image, and which one the
    input. `inputs` are the same files then."""


@dataclass(frozen=True, slots=True)
class UnpairedFiles:
    """The paths of both domains in a split."""

    a: list[str]
    b: list[str]


@dataclass(frozen=True, slots=True)
class ClassFiles:
    """Paths, and the class number of each."""

    paths: list[str]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class ClassFolder:
    """Images in classes. Classes that are held out have the last numbers."""

    classes: tuple[str, ...]
    unseen: tuple[str, ...]
    train: ClassFiles
    content: ClassFiles
    """Content images of an evaluation: of the classes that are trained on."""
    held_out: ClassFiles
    """The images of the classes that are held out."""


# ---- pairs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """Folders of a split below the root, each with what the names of its files end with."""

    images: str
    partners: str
    instances: str
    image_ending: str = ""
    partner_ending: str = ""
    instance_ending: str = ""


def scan_pairs(
    root: Path, inputs: Literal["labels", "images"], *, instances: bool, reverse: bool
) -> tuple[PairedFiles, PairedFiles]:
    """The pairs for training and those for evaluation. The arguments are those of `PairedData`.
    Raises FolderError where a folder or a partner is missing."""
    _check_root(root)
    if inputs == "images" and not (root / "train_B").is_dir() and (root / "train").is_dir():
        if instances:
            raise FolderError(
                f"{root / 'train'} has two images side by side in each file, and no maps of "
                "instances: set instances=false"
            )
        halves = (0, 1) if reverse else (1, 0)
        files = [_images(root / split) for split in ("train", _held_out(root))]
        train, test = (PairedFiles(paths, inputs=paths, halves=halves) for paths in files)
        return train, test
    for training, *tests in _layouts(inputs, reverse):
        if (root / training.images).is_dir() and (root / training.partners).is_dir():
            held_out = next((each for each in tests if (root / each.images).is_dir()), None)
            if held_out is None:
                expected = " or ".join(each.images for each in tests)
                raise FolderError(f"no images for evaluation in {root}: expected {expected}")
            train, test = (_pairs(root, each, inputs, instances) for each in (training, held_out))
            return train, test
    raise FolderError(f"no pairs in {root}: expected {_EXPECTED[inputs]}")


def _flat(images: str, partners: str) -> list[_Layout]:
    splits = ("train", *_HELD_OUT)
    return [
        _Layout(f"{split}_{images}", f"{split}_{partners}", f"{split}_inst") for split in splits
    ]


def _cityscapes(split: str) -> _Layout:
    endings = ("_leftImg8bit", "_gtFine_labelIds", "_gtFine_instanceIds")
    return _Layout(f"leftImg8bit/{split}", f"gtFine/{split}", f"gtFine/{split}", *endings)


def _ade20k(split: str) -> _Layout:
    # Its maps of instances have colours: red is the category, green the number of the object.
    return _Layout(f"images/{split}", f"annotations/{split}", f"annotations_instance/{split}")


def _layouts(inputs: str, reverse: bool) -> list[list[_Layout]]:
    """The known layouts, each as its split for training and those for evaluation."""
    if inputs == "images":
        return [_flat("A", "B") if reverse else _flat("B", "A")]
    return [
        _flat("img", "label"),
        [_cityscapes("train"), _cityscapes("val")],
        [_ade20k("training"), _ade20k("validation")],
    ]


_EXPECTED = {
    "labels": "train_img and train_label, leftImg8bit/train and gtFine/train, or images/training "
    "and annotations/training",
    "images": "train_A and train_B, or train with two images side by side in each file",
}


def _pairs(root: Path, layout: _Layout, inputs: str, instances: bool) -> PairedFiles:
    folder, other = root / layout.images, root / layout.partners
    images = by_name(folder, layout.image_ending)
    partners = by_name(other, layout.partner_ending)
    check_partners(images, partners, folder, other)
    paths, others = list(images.values()), [partners[name] for name in images]
    maps = _instances(root / layout.instances, layout, images, folder) if instances else None
    if inputs == "labels":
        return PairedFiles(paths, labels=others, instances=maps)
    return PairedFiles(paths, inputs=others, instances=maps)


def _instances(folder: Path, layout: _Layout, images: dict[str, str], other: Path) -> list[str]:
    if not folder.is_dir():
        raise FolderError(f"no maps of instances in {folder}: set instances=false to do without")
    found = by_name(folder, layout.instance_ending)
    check_partners(images, found, other, folder)
    return [found[name] for name in images]


def check_partners(
    images: dict[str, str], partners: dict[str, str], folder: Path, other: Path
) -> None:
    """Raise FolderError where a file, by its name, is in one of two folders alone."""
    for have, lack, here, there in (
        (images, partners, folder, other),
        (partners, images, other, folder),
    ):
        alone = [path for name, path in have.items() if name not in lack]
        if alone:
            raise FolderError(
                f"{len(alone)} of {len(have)} files in {here} have no partner in {there}: the "
                f"first is {os.path.relpath(alone[0], here)}"
            )


# ---- two domains ---------------------------------------------------------------------------------


def scan_domains(root: Path, domains: Sequence[str]) -> tuple[UnpairedFiles, UnpairedFiles]:
    """The images of both domains for training and for evaluation. `domains` are their names; none
    stand for A and B, or the only two there are. Raises FolderError where a folder is missing or
    empty."""
    _check_root(root)
    names = domains or _domains(root)
    splits = []
    for split in (("train",), _HELD_OUT):
        folders = [_domain_folder(root, split, name) for name in names]
        splits.append(UnpairedFiles(*map(_images, folders)))
    return splits[0], splits[1]


def _domains(root: Path) -> list[str]:
    if (root / "trainA").is_dir() or not (root / "train").is_dir():
        return ["A", "B"]
    found = [path.name for path in _subfolders(root / "train")]
    if len(found) != 2:
        raise FolderError(
            f"{root / 'train'} has {len(found)} folders, and there are two domains: name them, "
            f"such as domains=[{', '.join(found[:2]) or 'cat, dog'}]"
        )
    return found


def _domain_folder(root: Path, splits: Sequence[str], name: str) -> Path:
    places = [place for split in splits for place in (f"{split}{name}", f"{split}/{name}")]
    for place in places:
        if (root / place).is_dir():
            return root / place
    raise FolderError(f"no images of domain {name} in {root}: expected {' or '.join(places)}")


# ---- classes -------------------------------------------------------------------------------------


def scan_classes(
    root: Path, *, references: int, unseen: int, unseen_file: Path | None
) -> ClassFolder:
    """The images of the classes. The arguments are those of `ClassData`. Raises FolderError where a
    class has too few images, or too few classes are left."""
    _check_root(root)
    if (root / "train").is_dir():
        train = _classes(root / "train")
        test = next((_classes(root / each) for each in _HELD_OUT if (root / each).is_dir()), {})
    else:
        train, test = _classes(root), {}
    every = sorted({*train, *test})
    if unseen_file is not None:
        held_out = _names_in(unseen_file, root, every)
    else:
        held_out = [name for name in every if name not in train] or every[-unseen:]
    seen = [name for name in sorted(train) if name not in held_out]
    if len(seen) < 2:
        raise FolderError(
            f"{len(seen)} classes in {root} are left for training, and it needs two: hold out less "
            f"than {len(held_out)}"
        )
    styles = {name: train[name] for name in seen}
    styles |= {name: test.get(name) or train[name] for name in held_out}
    for name, paths in styles.items():
        folder = os.path.dirname(paths[0])
        if len(paths) < references:
            raise FolderError(
                f"the class {name} has {len(paths)} images in {folder}, and "
                f"references={references} needs as many"
            )
        if name in held_out and len(paths) < 2:
            raise FolderError(
                f"the class {name} has one image in {folder}: a class that is held out needs two, "
                "since its images are compared as a set"
            )
    return ClassFolder(
        tuple(seen),
        tuple(held_out),
        _numbered([train[name] for name in seen]),
        _numbered([test.get(name) or train[name] for name in seen]),
        _numbered([styles[name] for name in held_out], len(seen)),
    )


def _names_in(file: Path, root: Path, classes: Sequence[str]) -> list[str]:
    try:
        lines = file.expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FolderError(f"unseen_file: {file} cannot be read: {error}") from error
    named = sorted({line.strip() for line in lines if line.strip()})
    unknown = [name for name in named if name not in classes]
    if unknown:
        raise FolderError(
            f"{file} names {len(unknown)} classes that are not in {root}: the first is {unknown[0]}"
        )
    if not named:
        raise FolderError(f"unseen_file: {file} names no class")
    return named


def _classes(folder: Path) -> dict[str, list[str]]:
    classes = {path.name: _images(path) for path in _subfolders(folder)}
    if not classes:
        raise FolderError(f"no classes in {folder}: expected a folder for each")
    return classes


def _numbered(classes: list[list[str]], first: int = 0) -> ClassFiles:
    labels = [number for number, paths in enumerate(classes, first) for _ in paths]
    return ClassFiles([path for paths in classes for path in paths], labels)


# ---- files ---------------------------------------------------------------------------------------


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise FolderError(f"there is no folder {root}: name the folder of the data in root")


def _held_out(root: Path) -> str:
    for split in _HELD_OUT:
        if (root / split).is_dir():
            return split
    raise FolderError(f"no images for evaluation in {root}: expected {' or '.join(_HELD_OUT)}")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def files_in(folder: Path) -> Iterator[str]:
    """Yield the paths of the files in a folder and those below, in any order. What has a name that
    begins with a dot is no data, nor is what a folder of such a name holds."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            if name[0] != ".":
                yield os.path.join(place, name)


def images_in(folder: Path) -> list[str]:
    """Those of `files_in` that are images."""
    return [path for path in files_in(folder) if os.path.splitext(path)[1].lower() in SUFFIXES]


def left_out(folder: Path) -> str:
    """The pictures and videos of other formats in a folder and those below, in words. Empty if
    there are none."""
    endings = (os.path.splitext(path)[1].lower() for path in files_in(folder))
    counts = Counter(ending for ending in endings if ending in _NOT_READ)
    return ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))


def _images(folder: Path, ending: str = "") -> list[str]:
    """Those of `images_in` whose names have this ending before the suffix, in the order of their
    names. Raises FolderError if there is no image."""
    paths = [path for path in images_in(folder) if os.path.splitext(path)[0].endswith(ending)]
    if not paths:
        others = left_out(folder)
        more = f" of a known format: it has {others}; convert them, such as to .png"
        raise FolderError(f"no images in {folder}" + (more if others else ""))
    return sorted(paths)


def by_name(folder: Path, ending: str = "") -> dict[str, str]:
    """The image files in a folder by what partners have in common: the path below `folder` without
    the suffix. Raises FolderError where two files have one name."""
    files: dict[str, str] = {}
    for path in _images(folder, ending):
        stem = os.path.splitext(os.path.relpath(path, folder))[0]
        name = _CITYSCAPES.sub("", stem)
        if name in files:
            raise FolderError(f"{files[name]} and {path} have one name: their partner is not known")
        files[name] = path
    return files
