"""The files of a data set, in each of the known layouts. Only names are looked at here."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.config import ClassData, PairedData, UnpairedData

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_CITYSCAPES = re.compile(r"_(leftImg8bit|gt(Fine|Coarse)_(labelIds|labelTrainIds|instanceIds))$")
"""Endings of names by which partners in Cityscapes differ."""
_HELD_OUT = ("test", "val")
"""Names of the split for evaluation."""


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


def scan_pairs(root: Path, data: PairedData) -> tuple[PairedFiles, PairedFiles]:
    """The pairs for training and those for evaluation. Raises DataError where a folder or a partner
    is missing."""
    _check_root(root)
    if data.inputs == "images" and not (root / "train_B").is_dir() and (root / "train").is_dir():
        return _side_by_side(root, "train", data), _side_by_side(root, _held_out(root), data)
    for layouts in _LABELLED if data.inputs == "labels" else _PICTURES:
        train, *tests = layouts
        if (root / train.images).is_dir() and (root / train.partners).is_dir():
            test = next((each for each in tests if (root / each.images).is_dir()), None)
            if test is None:
                expected = " or ".join(each.images for each in tests)
                raise DataError(f"no images for evaluation in {root}: expected {expected}")
            return _pairs(root, train, data), _pairs(root, test, data)
    raise DataError(f"no pairs in {root}: expected {_EXPECTED[data.inputs]}")


def _flat(images: str, partners: str) -> list[_Layout]:
    splits = ("train", *_HELD_OUT)
    return [
        _Layout(f"{split}_{images}", f"{split}_{partners}", f"{split}_inst") for split in splits
    ]


def _cityscapes(split: str) -> _Layout:
    endings = ("_leftImg8bit", "_gtFine_labelIds", "_gtFine_instanceIds")
    return _Layout(f"leftImg8bit/{split}", f"gtFine/{split}", f"gtFine/{split}", *endings)


def _ade20k(split: str) -> _Layout:
    return _Layout(f"images/{split}", f"annotations/{split}", f"annotations_instance/{split}")


_LABELLED = (
    _flat("img", "label"),
    [_cityscapes("train"), _cityscapes("val")],
    [_ade20k("training"), _ade20k("validation")],
)
_PICTURES = (_flat("B", "A"),)
_EXPECTED = {
    "labels": "train_img and train_label, leftImg8bit/train and gtFine/train, or images/training "
    "and annotations/training",
    "images": "train_A and train_B, or train with two images side by side in each file",
}


def _pairs(root: Path, layout: _Layout, data: PairedData) -> PairedFiles:
    images = _by_name(root / layout.images, layout.image_ending)
    partners = _by_name(root / layout.partners, layout.partner_ending)
    _check_partners(images, partners, root / layout.images, root / layout.partners)
    instances = None
    if data.instances:
        folder = root / layout.instances
        if not folder.is_dir():
            raise DataError(f"no maps of instances in {folder}: set instances=false to do without")
        found = _by_name(folder, layout.instance_ending)
        _check_partners(images, found, root / layout.images, folder)
        instances = [found[name] for name in images]
    paths, others = list(images.values()), [partners[name] for name in images]
    if data.inputs == "labels":
        return PairedFiles(paths, labels=others, instances=instances)
    if data.reverse:
        paths, others = others, paths
    return PairedFiles(paths, inputs=others, instances=instances)


def _side_by_side(root: Path, split: str, data: PairedData) -> PairedFiles:
    if data.instances:
        raise DataError(
            f"{root / split} has two images side by side in each file, and no maps of instances: "
            "set instances=false"
        )
    paths = _images(root / split)
    return PairedFiles(paths, inputs=paths, halves=(0, 1) if data.reverse else (1, 0))


def _check_partners(
    images: dict[str, str], partners: dict[str, str], folder: Path, other: Path
) -> None:
    for have, lack, here, there in (
        (images, partners, folder, other),
        (partners, images, other, folder),
    ):
        alone = [path for name, path in have.items() if name not in lack]
        if alone:
            raise DataError(
                f"{len(alone)} of {len(have)} files in {here} have no partner in {there}: the "
                f"first is {os.path.relpath(alone[0], here)}"
            )


# ---- two domains ---------------------------------------------------------------------------------


def scan_domains(root: Path, data: UnpairedData) -> tuple[UnpairedFiles, UnpairedFiles]:
    """The images of both domains for training and for evaluation. Raises DataError where a folder
    is missing or empty."""
    _check_root(root)
    names = _domains(root, data)
    splits = []
    for split in (("train",), _HELD_OUT):
        folders = [_domain_folder(root, split, name) for name in names]
        splits.append(UnpairedFiles(*map(_images, folders)))
    return splits[0], splits[1]


def _domains(root: Path, data: UnpairedData) -> list[str]:
    if data.domains:
        return data.domains
    if (root / "trainA").is_dir() or not (root / "train").is_dir():
        return ["A", "B"]
    found = [path.name for path in _subfolders(root / "train")]
    if len(found) != 2:
        raise DataError(
            f"{root / 'train'} has {len(found)} folders, and there are two domains: name them, "
            f"such as domains=[{', '.join(found[:2]) or 'cat, dog'}]"
        )
    return found


def _domain_folder(root: Path, splits: Sequence[str], name: str) -> Path:
    places = [place for split in splits for place in (f"{split}{name}", f"{split}/{name}")]
    for place in places:
        if (root / place).is_dir():
            return root / place
    raise DataError(f"no images of domain {name} in {root}: expected {' or '.join(places)}")


# ---- classes -------------------------------------------------------------------------------------


def scan_classes(root: Path, data: ClassData) -> ClassFolder:
    """The images of the classes. Raises DataError where a class has too few images, or too few
    classes are left."""
    _check_root(root)
    if (root / "train").is_dir():
        train = _classes(root / "train")
        test = next((_classes(root / each) for each in _HELD_OUT if (root / each).is_dir()), {})
    else:
        train, test = _classes(root), {}
    unseen = _unseen(root, data, train, test)
    seen = [name for name in sorted(train) if name not in unseen]
    if len(seen) < 2:
        raise DataError(
            f"{len(seen)} classes in {root} are left for training, and it needs two: hold out less "
            f"than {len(unseen)}"
        )
    held_out = {name: test.get(name) or train[name] for name in unseen}
    for name, paths in [*((name, train[name]) for name in seen), *held_out.items()]:
        if len(paths) < data.references:
            folder = os.path.dirname(paths[0])
            raise DataError(
                f"the class {name} has {len(paths)} images in {folder}, and "
                f"references={data.references} needs as many"
            )
    return ClassFolder(
        tuple(seen),
        tuple(unseen),
        _numbered([train[name] for name in seen]),
        _numbered([test.get(name) or train[name] for name in seen]),
        _numbered(list(held_out.values()), len(seen)),
    )


def _unseen(
    root: Path, data: ClassData, train: dict[str, list[str]], test: dict[str, list[str]]
) -> list[str]:
    """The names of the classes that are held out, in their order."""
    every = sorted({*train, *test})
    if data.unseen_file is not None:
        try:
            text = Path(data.unseen_file).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"unseen_file: {data.unseen_file} cannot be read: {error}") from error
        named = {line.strip() for line in text.splitlines() if line.strip()}
        unknown = sorted(named - set(every))
        if unknown:
            raise DataError(
                f"{data.unseen_file} names {len(unknown)} classes that are not in {root}: the "
                f"first is {unknown[0]}"
            )
        return sorted(named)
    return [name for name in every if name not in train] or every[-data.unseen :]


def _classes(folder: Path) -> dict[str, list[str]]:
    classes = {path.name: _images(path) for path in _subfolders(folder)}
    if not classes:
        raise DataError(f"no classes in {folder}: expected a folder for each")
    return classes


def _numbered(classes: list[list[str]], first: int = 0) -> ClassFiles:
    labels = [number for number, paths in enumerate(classes, first) for _ in paths]
    return ClassFiles([path for paths in classes for path in paths], labels)


# ---- files ---------------------------------------------------------------------------------------


def _check_root(root: Path) -> None:
    if not root.is_dir():
        raise DataError(f"there is no folder {root}: name the folder of the data in root")


def _held_out(root: Path) -> str:
    for split in _HELD_OUT:
        if (root / split).is_dir():
            return split
    raise DataError(f"no images for evaluation in {root}: expected {' or '.join(_HELD_OUT)}")


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _images(folder: Path, ending: str = "") -> list[str]:
    """The image files in a folder and those below, in the order of their names. Raises DataError
    where there is none."""
    paths = []
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() in SUFFIXES and stem.endswith(ending) and name[0] != ".":
                paths.append(os.path.join(place, name))
    if not paths:
        raise DataError(f"no images in {folder}")
    return sorted(paths)


def _by_name(folder: Path, ending: str) -> dict[str, str]:
    """The image files in a folder by what partners have in common: the path below `folder` without
    the suffix. Raises DataError where two files have one name."""
    files: dict[str, str] = {}
    for path in _images(folder, ending):
        stem = os.path.splitext(os.path.relpath(path, folder))[0]
        name = _CITYSCAPES.sub("", stem)
        if name in files:
            raise DataError(f"{files[name]} and {path} have one name: their partner is not known")
        files[name] = path
    return files
