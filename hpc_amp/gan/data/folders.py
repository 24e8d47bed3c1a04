"""The files of a data set, in each of the known layouts. Only names are looked at here.

Standard library only: the machine that submits looks, too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from hpc_amp.data.errors import DataError
from hpc_amp.data.names import SUFFIXES, folders_in, names_in, readable, suffix_of

_NOT_READ = {".avi", ".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".mkv", ".mov", ".mp4"}
"""Endings of pictures and videos that are left out."""
CITYSCAPES = re.compile(r"_(leftImg8bit|gt(Fine|Coarse)_(labelIds|labelTrainIds|instanceIds))$")
"""Endings of names by which partners in Cityscapes differ."""
HELD_OUT = ("test", "val")
"""Names of the split for evaluation."""

Files = TypeVar("Files", covariant=True)


@dataclass(frozen=True, slots=True)
class Scan(Generic[Files]):
    """What one look at the folder of a data set finds."""

    train: Files
    """The files of the training."""
    test: Files
    """Those of an evaluation."""
    samples: int
    """How many samples a training has."""
    text: str
    """What there is, in words."""


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
class ClassScan(Scan[ClassFiles]):
    """Images in classes. Those of `test` are of the classes that are held out, which have the last
    numbers."""

    content: ClassFiles
    """Content images of an evaluation: of the classes that are trained on."""
    classes: tuple[str, ...]
    unseen: tuple[str, ...]


# ---- names ---------------------------------------------------------------------------------------


class DataFolder:
    """The names of the files of a data set. Each folder is read once, however often it is asked
    for. Places are below the root."""

    def __init__(self, root: Path) -> None:
        """Raises DataError if there is no such folder."""
        self.root = root
        self._names: dict[str, list[str]] = {}
        if not self.has(""):
            raise DataError(f"there is no folder {root}: name the folder of the data in root")

    def has(self, place: str) -> bool:
        """Whether there is a folder. Raises DataError where that cannot be seen."""
        with readable(self.root), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return stat.S_ISDIR(os.stat(self.root / place).st_mode)
        return False

    def first(self, places: Sequence[str]) -> str | None:
        """The first one of these folders that there is."""
        return next(filter(self.has, places), None)

    def path(self, place: str, name: str) -> str:
        """The path of a file."""
        return os.path.join(self.root, place, name)

    def names(self, place: str) -> list[str]:
        """Those of `names_in`. Raises DataError, also if there is no such folder."""
        if not self.has(place):
            raise DataError(f"there is no folder {self.root / place}")
        if place not in self._names:
            self._names[place] = names_in(self.root / place)
        return self._names[place]

    def image_names(self, place: str, ending: str = "") -> list[str]:
        """The names of the images that have this ending before the suffix. Raises DataError if
        there is none."""
        found = []
        for name in self.names(place):
            stem, suffix = os.path.splitext(name)
            if suffix.lower() in SUFFIXES and stem.endswith(ending):
                found.append(name)
        if not found:
            others = _left_out(self.names(place))
            more = f" of a known format: it has {others}; convert them, such as to .png"
            raise DataError(f"no images in {self.root / place}" + (more if others else ""))
        return found

    def images(self, place: str) -> list[str]:
        """The paths of the images in a folder. Raises DataError if there is none."""
        return [self.path(place, name) for name in self.image_names(place)]

    def by_name(self, place: str, ending: str = "") -> dict[str, str]:
        """The paths of the images in a folder by what partners have in common: the name without the
        suffix. Raises DataError where two files have one name."""
        files: dict[str, str] = {}
        for file in self.image_names(place, ending):
            name, path = CITYSCAPES.sub("", os.path.splitext(file)[0]), self.path(place, file)
            if name in files:
                raise DataError(
                    f"{files[name]} and {path} have one name: their partner is not known"
                )
            files[name] = path
        return files

    def partners(
        self, images: dict[str, str], place: str, other: str, ending: str = ""
    ) -> list[str]:
        """The images in the folder `other` that are partners of all `images` of the folder `place`.
        Raises DataError where a file of one of them has none."""
        found = self.by_name(other, ending)
        here, there = self.root / place, self.root / other
        for have, lack, folder, missing in (
            (images, found, here, there),
            (found, images, there, here),
        ):
            alone = [path for name, path in have.items() if name not in lack]
            if alone:
                raise DataError(
                    f"{len(alone)} of {len(have)} files in {folder} have no partner in {missing}: "
                    f"the first is {os.path.relpath(alone[0], folder)}"
                )
        return [found[name] for name in images]

    def instances(
        self, images: dict[str, str], place: str, other: str, ending: str = ""
    ) -> list[str]:
        """The maps of instances in the folder `other`, as `partners`."""
        if not self.has(other):
            raise DataError(
                f"no maps of instances in {self.root / other}: set instances=false to do without"
            )
        return self.partners(images, place, other, ending)

    def text(self, found: str) -> str:
        """What was `found`, with the root and what was left out of the folders that were read."""
        others = _left_out(itertools.chain(*self._names.values()))
        note = f" ({others} left out, whose formats are not read)" if others else ""
        return f"{found} in {self.root}{note}"


def _left_out(names: Iterable[str]) -> str:
    """The pictures and videos of other formats among files, in words. Empty if there are none."""
    counts = Counter(each for each in map(suffix_of, names) if each in _NOT_READ)
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))


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
) -> Scan[PairedFiles]:
    """The pairs for training and those for evaluation. The arguments are those of `PairedData`.
    Raises DataError where a folder or a partner is missing."""
    folder = DataFolder(root)

    def complete(layout: _Layout) -> bool:
        return folder.has(layout.images) and folder.has(layout.partners)

    splits = next((each for each in _layouts(inputs, reverse) if complete(each[0])), None)
    if splits is None:
        raise DataError(f"no pairs in {root}: expected {_EXPECTED[inputs]}")
    training, *tests = splits
    held_out = next(filter(complete, tests), None)
    if held_out is None:
        places = (dict.fromkeys((each.images, each.partners)) for each in tests)
        expected = ", or ".join(map(" and ".join, places))
        raise DataError(f"no pairs for evaluation in {root}: expected {expected}")
    train, test = (
        _pairs(folder, each, inputs, instances, reverse) for each in (training, held_out)
    )
    samples = len(train.images)
    found = f"{samples:,} pairs for training, {len(test.images):,} for evaluation"
    return Scan(train, test, samples, folder.text(found))


_SPLITS = ("train", *HELD_OUT)


def _flat(images: str, partners: str) -> list[_Layout]:
    return [
        _Layout(f"{split}_{images}", f"{split}_{partners}", f"{split}_inst") for split in _SPLITS
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
        side_by_side = [_Layout(split, split, "") for split in _SPLITS]
        return [_flat("A", "B") if reverse else _flat("B", "A"), side_by_side]
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


def _pairs(
    folder: DataFolder, layout: _Layout, inputs: str, instances: bool, reverse: bool
) -> PairedFiles:
    if layout.images == layout.partners:
        if instances:
            raise DataError(
                f"{folder.root / layout.images} has two images side by side in each file, and no "
                "maps of instances: set instances=false"
            )
        paths = folder.images(layout.images)
        return PairedFiles(paths, inputs=paths, halves=(0, 1) if reverse else (1, 0))
    images = folder.by_name(layout.images, layout.image_ending)
    partners = folder.partners(images, layout.images, layout.partners, layout.partner_ending)
    maps = None
    if instances:
        maps = folder.instances(images, layout.images, layout.instances, layout.instance_ending)
    labels, pictures = (partners, None) if inputs == "labels" else (None, partners)
    return PairedFiles(list(images.values()), labels, maps, pictures)


# ---- two domains ---------------------------------------------------------------------------------


def scan_domains(root: Path, domains: Sequence[str]) -> Scan[UnpairedFiles]:
    """The images of both domains for training and for evaluation. `domains` are their names; none
    stand for A and B, or the only two there are. Raises DataError where a folder is missing or
    empty."""
    folder = DataFolder(root)
    names = domains or _domains(folder)
    train, test = (
        UnpairedFiles(*[folder.images(_domain_place(folder, splits, name)) for name in names])
        for splits in (("train",), HELD_OUT)
    )
    found = (
        f"{len(train.a):,} and {len(train.b):,} images for training, {len(test.a):,} and "
        f"{len(test.b):,} for evaluation"
    )
    return Scan(train, test, max(len(train.a), len(train.b)), folder.text(found))


def _domains(folder: DataFolder) -> list[str]:
    if folder.has("trainA") or not folder.has("train"):
        return ["A", "B"]
    found = folders_in(folder.root / "train")
    if len(found) != 2:
        raise DataError(
            f"{folder.root / 'train'} has {len(found)} folders, and there are two domains: name "
            f"them, such as domains=[{', '.join(found[:2]) or 'cat, dog'}]"
        )
    return found


def _domain_place(folder: DataFolder, splits: Sequence[str], name: str) -> str:
    places = [place for split in splits for place in (f"{split}{name}", f"{split}/{name}")]
    found = folder.first(places)
    if found is None:
        expected = " or ".join(places)
        raise DataError(f"no images of domain {name} in {folder.root}: expected {expected}")
    return found


# ---- classes -------------------------------------------------------------------------------------


def scan_classes(
    root: Path, *, references: int, unseen: int, unseen_file: Path | None
) -> ClassScan:
    """The images of the classes. The arguments are those of `ClassData`. Raises DataError where a
    class has too few images, or too few classes are left."""
    folder = DataFolder(root)
    if folder.has("train"):
        split = folder.first(HELD_OUT)
        train, test = _classes(folder, "train"), {} if split is None else _classes(folder, split)
    else:
        train, test = _classes(folder, ""), {}
    every = sorted({*train, *test})
    if unseen_file is not None:
        held_out = _names_in(unseen_file, root, every)
    else:
        held_out = [name for name in every if name not in train] or every[-unseen:]
    seen = [name for name in sorted(train) if name not in held_out]
    if len(seen) < 2:
        raise DataError(
            f"{len(seen)} classes in {root} are left for training, and it needs two: hold out less "
            f"than {len(held_out)}"
        )
    styles = {name: train[name] for name in seen}
    styles |= {name: test.get(name) or train[name] for name in held_out}
    for name, paths in styles.items():
        place = os.path.dirname(paths[0])
        if len(paths) < references:
            raise DataError(
                f"the class {name} has {len(paths)} images in {place}, and "
                f"references={references} needs as many"
            )
        if name in held_out and len(paths) < 2:
            raise DataError(
                f"the class {name} has one image in {place}: a class that is held out needs two, "
                "since its images are compared as a set"
            )
    training = _numbered([train[name] for name in seen])
    evaluation = _numbered([styles[name] for name in held_out], len(seen))
    found = (
        f"{len(training.paths):,} images of {len(seen):,} classes for training, "
        f"{len(evaluation.paths):,} of {len(held_out):,} held out for evaluation"
    )
    return ClassScan(
        training,
        evaluation,
        len(training.paths),
        folder.text(found),
        _numbered([test.get(name) or train[name] for name in seen]),
        tuple(seen),
        tuple(held_out),
    )


def _names_in(file: Path, root: Path, classes: Sequence[str]) -> list[str]:
    try:
        lines = file.expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"unseen_file: {file} cannot be read: {error}") from error
    named = sorted({line.strip() for line in lines if line.strip()})
    unknown = [name for name in named if name not in classes]
    if unknown:
        raise DataError(
            f"{file} names {len(unknown)} classes that are not in {root}: the first is {unknown[0]}"
        )
    if not named:
        raise DataError(f"unseen_file: {file} names no class")
    return named


def _classes(folder: DataFolder, split: str) -> dict[str, list[str]]:
    """The images of each class in a split; the root has the classes itself where `split` is ''."""
    names = folders_in(folder.root / split)
    if not names:
        raise DataError(f"no classes in {folder.root / split}: expected a folder for each")
    return {name: folder.images(os.path.join(split, name)) for name in names}


def _numbered(classes: list[list[str]], first: int = 0) -> ClassFiles:
    labels = [number for number, paths in enumerate(classes, first) for _ in paths]
    return ClassFiles([path for paths in classes for path in paths], labels)
