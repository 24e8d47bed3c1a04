"""The keys of the data of conditional generators. Standard library only."""

import pathlib
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import (
    NETWORK,
    Count,
    Fixed,
    Natural,
    Path,
    Section,
    at_least,
    between,
    section,
)
from hpc_amp.data.errors import DataError
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.data.folders import (
    ClassScan,
    PairedFiles,
    Scan,
    UnpairedFiles,
    scan_classes,
    scan_domains,
    scan_pairs,
)

SAMPLES = Fixed("the run has learned from these samples, in an order that follows from them")


def image_sides(value: list[int]) -> None:
    """A check that a list has one or two sides in pixels, each at least 8."""
    if len(value) not in (1, 2) or min(value) < 8:
        raise ValueError(f"{value} is not [height, width] or [side], each at least 8 pixels")


def two_names(value: list[str]) -> None:
    """A check that there are two different names of folders, or none."""
    if value and (len(set(value)) != 2 or len(value) != 2 or not all(map(str.isprintable, value))):
        raise ValueError(f"{value} is not the names of two folders, such as [cat, dog]")


Sides = Annotated[list[int], image_sides]
Name = Annotated[Literal["synthetic", "folder"], SAMPLES]


@section(kw_only=True, slots=True, frozen=True)
class SyntheticSamples(Section):
    """The size of a synthetic set."""

    train: Count = 512
    """Training samples; of two domains, those of each."""
    test: Count = 128
    """Evaluation samples; of two domains, those of each."""
    seed: Natural = 0
    """Seed of the set. It does not depend on `train.seed`."""


@section(kw_only=True, slots=True, frozen=True)
class SyntheticDomains(SyntheticSamples):
    """The size of a synthetic set of two domains."""

    styles: Annotated[int, between(1, 4)] = 1
    """Palettes of domain B. With more than one, an image of domain A has several correct
    translations."""


@section(kw_only=True, slots=True, frozen=True)
class SyntheticClasses(Section):
    """The size of a synthetic set of classes."""

    classes: Annotated[int, between(3, 8 * 7 * 4)] = 24
    """Number of classes, including those for evaluation."""
    train: Count = 32
    """Images of each class that is trained on."""
    test: Annotated[int, at_least(2)] = 32
    """Images of each class that is held out for evaluation."""
    seed: Natural = 0
    """Seed of the set. It does not depend on `train.seed`."""


@section(kw_only=True, slots=True, frozen=True)
class GanData(Section):
    """Where images come from, and what is done with them before a network sees them."""

    SHORTHAND: ClassVar[str] = "name"

    name: Name = "synthetic"
    """`folder` reads the files below `root`, in one of the [known layouts](gan-data.md).
    `synthetic` draws the images."""
    root: Path = "data"
    """Folder of the files, relative to where `submit` was called."""
    image_size: Annotated[Sides, SAMPLES] = field(default_factory=lambda: [32])
    """`[height, width]` in pixels of the images that the networks see, or `[side]` of squares."""
    load_size: Sides | None = None
    """Size in pixels to which a training image is scaled before a random part of `image_size` is
    cut out: `[height, width]`, or `[shorter side]`, which keeps the ratio of the sides. Default:
    images are scaled to `image_size` without a cut."""
    flip: bool = True
    """Mirror half of the training images. The parts of a pair are mirrored together."""
    workers: Natural | None = None
    """Threads of each rank that decode files; 0 decodes while the training waits. Default: the
    rank's cores less one, at most 8. A synthetic set needs no threads."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that the networks see, in pixels."""
        return self.image_size[0], self.image_size[-1]

    @property
    def folder(self) -> pathlib.Path:
        """`root` as an absolute path."""
        return pathlib.Path(self.root).expanduser().absolute()

    def scan(self, train: Train) -> Scan[Any]:
        """The files below `root`, which are enough for `train`. Raises DataError."""
        raise NotImplementedError

    def examine(self, train: Train) -> str:
        """What a training finds, in words, from a look at the names of the files. `validate` and
        `doctor` show it. Raises DataError."""
        return "synthetic images" if self.name == "synthetic" else self.scan(train).text

    def check_keys(self, train: Train) -> None:
        """Check the keys against each other, and the size of a synthetic set against `train`.
        Raises KeyProblem."""
        load = self.load_size
        wanted = self.size if load is not None and len(load) == 2 else (min(self.size),)
        if load is not None and any(have < need for have, need in zip(load, wanted, strict=True)):
            raise KeyProblem(
                "images.load_size",
                f"{load} is smaller than image_size, {list(self.size)}",
                "make it larger, or leave it out",
            )
        if self.name == "synthetic" and train.batch_size > self.drawn:
            raise KeyProblem(
                "batch_size",
                f"{train.batch_size} is more than the {self.drawn} training samples of the "
                "synthetic set",
                "make it smaller, or train.images.synthetic.train larger",
            )

    @property
    def drawn(self) -> int:
        """How many samples for training a synthetic set has."""
        return self.synthetic.train  # type: ignore[attr-defined,no-any-return]


def check_batch(found: Scan[Any], train: Train) -> None:
    """Raise DataError where the training files are less than a batch."""
    if found.samples < train.batch_size:
        raise DataError(
            f"batch_size: {train.batch_size} is more than the {found.samples} training samples"
        )


@section(kw_only=True, slots=True, frozen=True)
class PairedData(GanData):
    """Images, each with a label map or another image that it is made from."""

    inputs: Annotated[Literal["labels", "images"], NETWORK] = "labels"
    """What the generator makes an image from: a map of label ids, or another image."""
    reverse: Annotated[bool, SAMPLES] = False
    """Pairs of images: make the first image of a pair (A) from the second (B)."""
    labels: Annotated[int, between(2, 256), NETWORK] = 6
    """Number of label ids, without `ignore_label`."""
    ignore_label: Annotated[int | None, between(0, 255), NETWORK] = None
    """Id in the files of pixels without a label. They get a channel of their own after those of the
    labels, and larger ids count one less: with 0, the ids 1 to 150 of a file become 0 to 149."""
    instances: Annotated[bool, NETWORK] = False
    """Read maps of instances too. The generator sees the edges between them in one more channel."""
    synthetic: Annotated[SyntheticSamples, SAMPLES] = field(default_factory=SyntheticSamples)
    """Size of the synthetic set, where it is used. It has `labels` labels, but at most 8."""

    @property
    def label_channels(self) -> int:
        """Channels of the labels: one for each, and one for pixels without a label."""
        return self.labels + (self.ignore_label is not None)

    @property
    def condition_channels(self) -> int:
        """Channels of what `hpc_amp.gan.data.batches.condition` makes."""
        if self.inputs == "images":
            return 3 + self.instances
        return self.label_channels + self.instances

    def scan(self, train: Train) -> Scan[PairedFiles]:
        """The pairs below `root`, which are enough for `train`. Raises DataError."""
        found = scan_pairs(self.folder, self.inputs, instances=self.instances, reverse=self.reverse)
        check_batch(found, train)
        return found


@section(kw_only=True, slots=True, frozen=True)
class UnpairedData(GanData):
    """Images of two domains, A and B, which are not pairs."""

    domains: Annotated[list[str], two_names, SAMPLES] = field(default_factory=list)
    """Names of the folders of A and B. Default: `A` and `B` (`trainA`, `trainB`), or the only two
    folders in `train`."""
    synthetic: Annotated[SyntheticDomains, SAMPLES] = field(default_factory=SyntheticDomains)
    """Size of the synthetic set, where it is used."""

    def scan(self, train: Train) -> Scan[UnpairedFiles]:
        """The images below `root`, which are enough for `train`. Raises DataError."""
        found = scan_domains(self.folder, self.domains)
        check_batch(found, train)
        return found


@section(kw_only=True, slots=True, frozen=True)
class ClassData(GanData):
    """Images in classes. The style of a sample is given by some images of one class."""

    references: Count = 1
    """Images that show the style of a sample."""
    unseen: Annotated[Count, NETWORK] = 4
    """Number of classes that are held out for evaluation: the last ones by name. If `test` (or
    `val`) has classes that `train` does not have, those are held out instead."""
    unseen_file: Annotated[Path | None, NETWORK] = None
    """File with the names of the classes that are held out, one in each line, instead of
    `unseen`."""
    synthetic: Annotated[SyntheticClasses, SAMPLES] = field(default_factory=SyntheticClasses)
    """Size of the synthetic set, where it is used."""

    def scan(self, train: Train) -> ClassScan:
        """The images below `root`, which are enough for `train`. Raises DataError."""
        unseen_file = None if self.unseen_file is None else pathlib.Path(self.unseen_file)
        found = scan_classes(
            self.folder,
            references=self.references,
            unseen=self.unseen,
            unseen_file=unseen_file,
        )
        check_batch(found, train)
        return found

    @property
    def drawn(self) -> int:
        """How many samples for training a synthetic set has."""
        return (self.synthetic.classes - self.unseen) * self.synthetic.train

    def check_keys(self, train: Train) -> None:
        """Also whether a synthetic set has enough classes and images. Raises KeyProblem."""
        config = self.synthetic
        if self.name == "synthetic":
            if config.classes - self.unseen < 2:
                raise KeyProblem(
                    "images.unseen",
                    f"of {config.classes} synthetic classes, {self.unseen} held out leave less "
                    "than two for training",
                )
            if self.references > min(config.train, config.test):
                raise KeyProblem(
                    "images.references", f"{self.references} is more than the images of a class"
                )
        GanData.check_keys(self, train)
