"""Folders of images in the layouts of the original repositories, and what is wrong with them."""

import json
import re
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.gandata import colour_of, evaluated, write_image, write_map
from support.stubs import StubHost

from hpc_amp.config.schema import Train
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.batches import ClassBatch, PairedBatch, UnpairedBatch, condition
from hpc_amp.gan.data.config import ClassData, PairedData, UnpairedData
from hpc_amp.gan.data.folders import scan_domains
from hpc_amp.gan.data.reading import MapFiles
from hpc_amp.gan.data.training import (
    Prepared,
    prepare_classes,
    prepare_paired,
    prepare_unpaired,
)
from hpc_amp.gan.inputs import images_below
from hpc_amp.gan.video.folders import scan_videos

CPU = torch.device("cpu")
ONE = Train(batch_size=1)


def pairs(root: Path, **keys: Any) -> Prepared[PairedBatch]:
    settings = {"image_size": [8, 12], "flip": False, "workers": 0, **keys}
    return prepare_paired(PairedData(name="folder", root=str(root), **settings), ONE, World(), CPU)


def domains(root: Path, **keys: Any) -> Prepared[UnpairedBatch]:
    settings = {"image_size": [8], "flip": False, "workers": 0, **keys}
    data = UnpairedData(name="folder", root=str(root), **settings)
    return prepare_unpaired(data, ONE, World(), CPU)


def classes(root: Path, **keys: Any) -> Prepared[ClassBatch]:
    settings = {"image_size": [8], "flip": False, "workers": 0, **keys}
    return prepare_classes(ClassData(name="folder", root=str(root), **settings), ONE, World(), CPU)


def error(prepare: Callable[..., Any], root: Path, **keys: Any) -> str:
    """The one line that says what is wrong, with paths below `root`."""
    with pytest.raises(DataError) as raised:
        prepare(root, **keys)
    message = str(raised.value)
    assert "\n" not in message
    return message.replace(str(root), "ROOT")


# ---- pairs ---------------------------------------------------------------------------------------


def spade(root: Path) -> None:
    for split, first in (("train", 0), ("val", 3)):
        for number in range(first, first + 2):
            write_image(root / f"{split}_img/{number:012}.jpg", (0, 0, 0))
            write_image(root / f"{split}_img/{number:012}.jpg", (number * 50, 0, 0))
            write_map(root / f"{split}_label/{number:012}.png", number)
            write_map(root / f"{split}_inst/{number:012}.png", number + 10)


def pix2pix_hd(root: Path) -> None:
    """Cityscapes, as pix2pixHD keeps it: endings stay."""
    for split, first in (("train", 0), ("test", 3)):
        for number in range(first, first + 2):
            name = f"aachen_{number:06}_000019"
            write_image(root / f"{split}_img/{name}_leftImg8bit.png", (number * 50, 0, 0))
            write_map(root / f"{split}_label/{name}_gtFine_labelIds.png", number)
            write_map(
                root / f"{split}_inst/{name}_gtFine_instanceIds.png", number + 10, mode="I;16"
            )


def cityscapes(root: Path) -> None:
    """As downloaded: a folder for each city, and all kinds of annotations in one folder."""
    for split, first in (("train", 0), ("val", 3)):
        for number in range(first, first + 2):
            images, labels = root / "leftImg8bit" / split, root / "gtFine" / split
            name = f"city{number}/city{number}_000000_000019"
            write_image(images / f"{name}_leftImg8bit.png", (number * 50, 0, 0))
            write_map(labels / f"{name}_gtFine_labelIds.png", number)
            write_map(labels / f"{name}_gtFine_instanceIds.png", number + 10, mode="I;16")
            write_image(labels / f"{name}_gtFine_color.png", (1, 2, 3))
            (labels / f"{name}_gtFine_polygons.json").write_text("{}")


def ade20k(root: Path) -> None:
    for split, first in (("training", 0), ("validation", 3)):
        for number in range(first, first + 2):
            write_image(root / f"images/{split}/ADE_{number:08}.png", (number * 50, 0, 0))
            write_map(root / f"annotations/{split}/ADE_{number:08}.png", number)
            # Red is a category, green the number of an object.
            place = root / f"annotations_instance/{split}/ADE_{number:08}.png"
            write_image(place, (number + 10, 0, 0))


@pytest.mark.parametrize("layout", [spade, pix2pix_hd, cityscapes, ade20k])
@pytest.mark.parametrize("instances", [True, False])
def test_pairs_with_labels(layout: Callable[[Path], None], instances: bool, tmp_path: Path) -> None:
    layout(tmp_path)
    data = pairs(tmp_path, instances=instances)
    assert data.name == tmp_path.name and not data.synthetic

    for steps, numbers in (
        ([step[0] for step in data.training.epoch(0)], {0, 1}),
        (list(data.evaluation()), {3, 4}),
    ):
        found = set()
        for batch in steps:
            number = round(colour_of(batch.images[0])[0] / 50)
            found.add(number)
            assert batch.labels.dtype == torch.int64 and (batch.labels == number).all()
            if instances:
                assert (batch.instances == number + 10).all()
            else:
                assert batch.instances is None
        assert found == numbers


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_each_colour_of_an_instance_map_is_an_object(mode: str, tmp_path: Path) -> None:
    colours = [(7, 1, 0), (7, 2, 0), (255, 255, 255), (0, 0, 0)]
    maps = Image.new(mode, (12, 8))
    for column in range(12):
        for row in range(8):
            maps.putpixel(
                (column, row), (*colours[column // 3], *([200] if mode == "RGBA" else []))
            )
    for split in ("train", "test"):
        write_image(tmp_path / f"{split}_img/a.png", (0, 0, 0))
        write_map(tmp_path / f"{split}_label/a.png", 0)
        (tmp_path / f"{split}_inst").mkdir()
        maps.save(tmp_path / f"{split}_inst/a.png")
    (batch,) = pairs(tmp_path, instances=True).evaluation()
    expected = [red + 256 * green + 65536 * blue for red, green, blue in colours]
    assert batch.instances[0, 0, ::3].tolist() == expected
    assert condition(batch, PairedData(instances=True))[0, -1, 0].tolist() == [
        0,
        0,
        *[1, 1, 0] * 3,
        0,
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["side by side", "two folders"])
def test_pairs_of_images(layout: str, reverse: bool, tmp_path: Path) -> None:
    """A is red, B is green."""
    for split in ("train", "val"):
        for number in range(2):
            a, b = (number * 50 + 10, 0, 0), (0, number * 50 + 10, 0)
            if layout == "two folders":
                write_image(tmp_path / f"{split}_A/{number}.png", a)
                write_image(tmp_path / f"{split}_B/{number}.png", b)
                continue
            both = Image.new("RGB", (24, 8), a)
            both.paste(b, (12, 0, 24, 8))
            (tmp_path / split).mkdir(exist_ok=True)
            both.save(tmp_path / f"{split}/{number}_AB.png")

    data = pairs(tmp_path, inputs="images", reverse=reverse)

    for batch in [step[0] for step in data.training.epoch(0)] + list(data.evaluation()):
        a, b = colour_of(batch.inputs[0]), colour_of(batch.images[0])
        if reverse:
            a, b = b, a
        assert a[0] == b[1] > 0 and a[1:] == (0, 0) and (b[0], b[2]) == (0, 0)
        assert batch.labels is None


def test_what_has_a_hidden_name_is_no_data(tmp_path: Path) -> None:
    """For all kinds of folders, and for inputs of generators; the folder itself may have one."""
    root = tmp_path / ".data"
    names = ("1.png", "._1.png", ".ipynb_checkpoints/1-checkpoint.png")
    for folder in ("trainA", "trainB", "testA", "testB"):
        for place in (folder, f"{folder[:-1]}_{folder[-1]}/scene"):
            for name in names:
                (root / place / name).parent.mkdir(parents=True, exist_ok=True)
                (root / place / name).touch()
    found = scan_domains(root, [])
    assert found.train.a == [str(root / "trainA/1.png")]
    assert [len(files) for files in (found.train.b, found.test.a, found.test.b)] == [1, 1, 1]
    videos = scan_videos(root, "images", instances=False, reverse=False, flow=False)
    assert videos.train.lengths == (1,)
    assert images_below(root / "train_A") == [root / "train_A/scene/1.png"]


@pytest.mark.parametrize(
    ("ignore_label", "numbers"),
    [(None, [0, 1, 2]), (0, [3, 0, 1]), (1, [0, 3, 1]), (255, [0, 1, 2])],
)
@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_ids_that_mean_no_label(
    ignore_label: int | None, numbers: list[int], mode: str, tmp_path: Path
) -> None:
    for number in range(3):
        for split in ("train", "val"):
            write_image(tmp_path / f"{split}_img/{number}.png", (number * 50, 0, 0))
            write_map(tmp_path / f"{split}_label/{number}.png", number, mode=mode)
    data = pairs(tmp_path, labels=3, ignore_label=ignore_label)
    assert [int(batch.labels[0, 0, 0]) for batch in data.evaluation()] == numbers


def test_pictures_of_other_formats_are_not_left_out_in_silence(tmp_path: Path) -> None:
    for domain in "AB":
        for split in ("train", "test"):
            write_image(tmp_path / f"{split}{domain}/1.png", (0, 0, 0))
    data = UnpairedData(name="folder", root=str(tmp_path))
    assert data.examine(ONE).endswith(f"for evaluation in {tmp_path}")
    for name in ("2.HEIC", "3.heic", "4.gif", "notes.txt", ".5.gif"):
        (tmp_path / "trainA" / name).touch()
    assert data.examine(ONE).endswith(
        f"in {tmp_path} (1 .gif, 2 .heic left out, whose formats are not read)"
    )
    (tmp_path / "trainA/1.png").unlink()
    with pytest.raises(DataError) as caught:
        data.examine(ONE)
    assert str(caught.value) == (
        f"no images in {tmp_path}/trainA of a known format: it has 1 .gif, 2 .heic; convert them, "
        "such as to .png"
    )


def packed(bits: int, numbers: list[int]) -> bytes:
    """A row of numbers of so many bits."""
    text = "".join(f"{number:0{bits}b}" for number in numbers)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def grey_png(bits: int, numbers: list[int]) -> bytes:
    """A PNG of one row of grey values; Pillow writes none of less than 8 bits."""
    header = struct.pack(">IIBBBBB", len(numbers), 1, bits, 0, 0, 0, 0)
    row = zlib.compress(b"\0" + packed(bits, numbers))
    content = b"\x89PNG\r\n\x1a\n"
    for name, part in ((b"IHDR", header), (b"IDAT", row), (b"IEND", b"")):
        content += struct.pack(">I", len(part)) + name + part
        content += struct.pack(">I", zlib.crc32(name + part))
    return content


def grey_tiff(bits: int, numbers: list[int], black: int = 0) -> bytes:
    """The same as TIFF, in which black is the number 0 or 1, and white the other one."""
    row, width = packed(bits, numbers), len(numbers)
    tags = {256: width, 257: 1, 258: bits, 259: 1, 262: 1 - black}
    tags |= {273: 0, 277: 1, 278: 1, 279: len(row)}
    tags[273] = 8 + 2 + 12 * len(tags) + 4  # where the row begins
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    return b"".join((b"II*\0\x08\0\0\0", struct.pack("<H", len(tags)), *entries, bytes(4), row))


@pytest.mark.parametrize("written", [grey_png, grey_tiff, partial(grey_tiff, black=1)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_ids_do_not_depend_on_the_bits_of_a_file(
    bits: int, written: Callable[[int, list[int]], bytes], tmp_path: Path
) -> None:
    numbers = [0, 1, 3, 2, 2**bits - 1, 2**bits - 2, 0]
    path = tmp_path / "map"
    path.write_bytes(written(bits, numbers))
    assert list(MapFiles([str(path)]).open(0).tobytes()) == numbers


def test_what_is_wrong_with_pairs(tmp_path: Path) -> None:
    assert error(pairs, tmp_path / "none") == (
        "there is no folder ROOT/none: name the folder of the data in root"
    ).replace("ROOT", str(tmp_path)).replace(str(tmp_path / "none"), "ROOT")
    assert error(pairs, tmp_path).startswith(
        "no pairs in ROOT: expected train_img and train_label, leftImg8bit/train and gtFine/train,"
    )
    assert error(pairs, tmp_path, inputs="images").startswith(
        "no pairs in ROOT: expected train_A and train_B, or train with two images side by side"
    )
    write_image(tmp_path / "train_img/a.png", (0, 0, 0))
    write_map(tmp_path / "train_label/a.png", 0)
    assert error(pairs, tmp_path) == (
        "no pairs for evaluation in ROOT: expected test_img and test_label, or val_img and "
        "val_label"
    )
    write_image(tmp_path / "test_img/b.png", (0, 0, 0))
    write_map(tmp_path / "test_label/b.png", 0)
    assert evaluated(pairs(tmp_path)) == 1
    assert error(pairs, tmp_path, instances=True) == (
        "no maps of instances in ROOT/train_inst: set instances=false to do without"
    )

    for name in ("b", "c"):
        write_image(tmp_path / f"train_img/{name}.jpg", (0, 0, 0))
    assert error(pairs, tmp_path) == (
        "2 of 3 files in ROOT/train_img have no partner in ROOT/train_label: the first is b.jpg"
    )
    for name in ("b", "c", "d"):
        write_map(tmp_path / f"train_label/{name}.png", 0)
    assert error(pairs, tmp_path) == (
        "1 of 4 files in ROOT/train_label have no partner in ROOT/train_img: the first is d.png"
    )
    (tmp_path / "train_label/d.png").unlink()
    write_image(tmp_path / "train_img/a.jpg", (0, 0, 0))
    assert error(pairs, tmp_path) == (
        "ROOT/train_img/a.jpg and ROOT/train_img/a.png have one name: their partner is not known"
    )


def test_what_is_wrong_in_a_file_shows_before_the_training(tmp_path: Path) -> None:
    write_image(tmp_path / "train_img/a.png", (0, 0, 0))
    write_map(tmp_path / "train_label/a.png", 7)
    write_image(tmp_path / "test_img/b.png", (0, 0, 0))
    write_map(tmp_path / "test_label/b.png", 0)

    assert error(pairs, tmp_path, labels=7) == (
        "ROOT/train_label/a.png has the label id 7, and labels=7, ignore_label=null allow 0 to 6"
    )
    assert error(pairs, tmp_path, labels=6, ignore_label=0) == (
        "ROOT/train_label/a.png has the label id 7, and labels=6, ignore_label=0 allow 0 to 6"
    )
    assert error(pairs, tmp_path, labels=6, ignore_label=255).endswith(
        "labels=6, ignore_label=255 allow 0 to 5, and 255 for pixels without a label"
    )
    pairs(tmp_path, labels=7, ignore_label=0)
    pairs(tmp_path, labels=6, ignore_label=7)

    write_map(tmp_path / "train_label/a.png", 300, mode="I;16")
    assert "a.png has the label id 300" in error(pairs, tmp_path)
    write_image(tmp_path / "train_label/a.png", (1, 2, 3))
    assert error(pairs, tmp_path).startswith("the map ROOT/train_label/a.png is of the mode RGB: ")
    write_map(tmp_path / "train_label/a.png", 0)
    for split, name in (("train", "a"), ("test", "b")):
        Image.new("LA", (12, 8)).save(tmp_path / f"{split}_img/{name}.inst.png")
        (tmp_path / f"{split}_inst").mkdir()
        (tmp_path / f"{split}_img/{name}.inst.png").rename(tmp_path / f"{split}_inst/{name}.png")
    assert "_inst/a.png is of the mode LA: " in error(pairs, tmp_path, instances=True)
    (tmp_path / "train_label/a.png").write_bytes(b"damaged")
    assert error(pairs, tmp_path).startswith("the map ROOT/train_label/a.png cannot be read: ")
    write_map(tmp_path / "train_label/a.png", 0, size=(8, 12))
    assert error(pairs, tmp_path) == (
        "ROOT/train_label/a.png has 8 x 12 pixels, and its partner ROOT/train_img/a.png 12 x 8"
    )
    write_map(tmp_path / "train_label/a.png", 0)
    write_map(tmp_path / "train_inst/a.png", 0, size=(12, 9))
    write_map(tmp_path / "test_inst/b.png", 0)
    assert error(pairs, tmp_path, instances=True) == (
        "ROOT/train_inst/a.png has 12 x 9 pixels, and its partner ROOT/train_img/a.png 12 x 8"
    )


def test_what_is_wrong_with_pairs_of_images(tmp_path: Path) -> None:
    write_image(tmp_path / "train/a.png", (0, 0, 0), size=(13, 8))
    assert error(pairs, tmp_path, inputs="images") == (
        "no pairs for evaluation in ROOT: expected test, or val"
    )
    write_image(tmp_path / "val/a.png", (0, 0, 0))
    assert error(pairs, tmp_path, inputs="images") == (
        "the image ROOT/train/a.png is 13 pixels wide: two images of equal size side by side have "
        "an even width"
    )
    assert error(pairs, tmp_path, inputs="images", instances=True).endswith("set instances=false")


# ---- two domains ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test"),
    [("trainA trainB", "testA testB"), ("train/cat train/dog", "val/cat val/dog")],
)
def test_two_domains(train: str, test: str, tmp_path: Path) -> None:
    for split, number in ((train, 1), (test, 2)):
        for folder, colour in zip(split.split(), ((number, 0, 0), (0, number, 0)), strict=True):
            write_image(tmp_path / folder / "x.png", colour)
    data = domains(tmp_path)
    ((trained,),) = data.training.epoch(0)
    (evaluated,) = data.evaluation()
    for batch, number in ((trained, 1), (evaluated, 2)):
        assert colour_of(batch.a[0]) == (number, 0, 0) and colour_of(batch.b[0]) == (0, number, 0)
        assert batch.a_in_b is None and batch.b_in_a is None


def test_what_is_wrong_with_domains(tmp_path: Path) -> None:
    assert error(domains, tmp_path) == ("no images of domain A in ROOT: expected trainA or train/A")
    for domain in ("cat", "dog", "wild"):
        write_image(tmp_path / f"train/{domain}/x.png", (0, 0, 0))
    assert error(domains, tmp_path) == (
        "ROOT/train has 3 folders, and there are two domains: name them, such as domains=[cat, dog]"
    )
    assert error(domains, tmp_path, domains=["wild", "cat"]) == (
        "no images of domain wild in ROOT: expected testwild or test/wild or valwild or val/wild"
    )
    for domain in ("cat", "wild"):
        write_image(tmp_path / f"val/{domain}/x.png", (0, 0, 0))
    assert evaluated(domains(tmp_path, domains=["wild", "cat"])) == 1
    (tmp_path / "train/wild/x.png").unlink()
    assert error(domains, tmp_path, domains=["wild", "cat"]) == "no images in ROOT/train/wild"


# ---- classes -------------------------------------------------------------------------------------


def write_classes(root: Path, names: str, images: int) -> None:
    """Images of each class: red is the place of its name in the alphabet, green is the number."""
    for name in names:
        for number in range(images):
            write_image(root / name / f"{number}.png", (ord(name) - ord("a"), number, 0))


def seen_in(data: Prepared[ClassBatch]) -> tuple[set[int], set[int], set[int]]:
    """Classes of content in training, of content in evaluation, and of style in evaluation, from
    the colours of the images."""
    trained = {colour_of(step[0].content[0])[0] for step in data.training.epoch(0)}
    evaluated = list(data.evaluation())
    for batch in evaluated:
        names = (*data.classes, *data.unseen)
        style, content = colour_of(batch.style[0, 0])[0], colour_of(batch.content[0])[0]
        assert ord(names[int(batch.style_class)]) - ord("a") == style
        assert ord(names[int(batch.content_class)]) - ord("a") == content
    return (
        trained,
        {colour_of(batch.content[0])[0] for batch in evaluated},
        {colour_of(batch.style[0, 0])[0] for batch in evaluated},
    )


def test_class_folders(tmp_path: Path) -> None:
    write_classes(tmp_path, "abcd", 3)
    data = classes(tmp_path, unseen=1)
    assert (data.classes, data.unseen) == (("a", "b", "c"), ("d",))
    trained, content, style = seen_in(data)
    assert trained == {0, 1, 2} and content <= trained and style == {3}
    assert data.training.samples == 9 and evaluated(data) == 3


def test_class_folders_of_two_splits(tmp_path: Path) -> None:
    """Where classes are in one of them alone, they are the ones that are held out."""
    write_classes(tmp_path / "train", "abc", 4)
    write_classes(tmp_path / "val", "abc", 2)
    data = classes(tmp_path, unseen=1)
    assert (data.classes, data.unseen, evaluated(data)) == (("a", "b"), ("c",), 2)

    write_classes(tmp_path / "val", "xy", 2)
    data = classes(tmp_path, unseen=1)
    assert (data.classes, data.unseen, evaluated(data)) == (("a", "b", "c"), ("x", "y"), 4)
    assert seen_in(data)[2] == {23, 24}


def test_a_file_of_names(tmp_path: Path) -> None:
    write_classes(tmp_path / "data", "abcd", 3)
    names = tmp_path / "names.txt"
    names.write_text("b\n\na\n")
    data = classes(tmp_path / "data", unseen_file=str(names))
    assert (data.classes, data.unseen) == (("c", "d"), ("a", "b"))
    assert seen_in(data)[2] == {0, 1}

    names.write_text("b\nzebra\n")
    assert re.fullmatch(
        r".*names.txt names 1 classes that are not in ROOT: the first is zebra",
        error(classes, tmp_path / "data", unseen_file=str(names)),
    )
    names.unlink()
    assert "names.txt cannot be read" in error(classes, tmp_path / "data", unseen_file=str(names))


def test_what_is_wrong_with_classes(tmp_path: Path) -> None:
    assert error(classes, tmp_path) == "no classes in ROOT: expected a folder for each"
    write_classes(tmp_path, "abc", 3)
    assert error(classes, tmp_path, unseen=2) == (
        "1 classes in ROOT are left for training, and it needs two: hold out less than 2"
    )
    write_classes(tmp_path, "d", 1)
    assert error(classes, tmp_path, unseen=1, references=2) == (
        "the class d has 1 images in ROOT/d, and references=2 needs as many"
    )
    assert error(classes, tmp_path, unseen=1, references=1).startswith(
        "the class d has one image in ROOT/d: a class that is held out needs two"
    )
    write_classes(tmp_path, "d", 2)
    assert evaluated(classes(tmp_path, unseen=1, references=1)) == 2
    (tmp_path / "e").mkdir()
    assert error(classes, tmp_path) == "no images in ROOT/e"


# ---- before the job is submitted -----------------------------------------------------------------

CONFIG = """
from dataclasses import dataclass, field
from typing import ClassVar
from hpc_amp.config.schema import Train
from hpc_amp.gan.data.config import PairedData

@dataclass(kw_only=True, slots=True, frozen=True)
class PairsConfig(Train):
    UNUSED: ClassVar[tuple[str, ...]] = ("data",)
    pairs: PairedData = field(default_factory=PairedData)
"""


@pytest.mark.parametrize("site", ["local", "slurm"])
def test_validate_and_doctor_look_at_the_folder(host: StubHost, site: str) -> None:
    """What is wrong is an error where the job runs on this machine."""
    package = host.work / "code" / "pairs"
    package.mkdir(parents=True)
    (package / "config.py").write_text(CONFIG)
    (package / "task.py").write_text("class Pairs: ...\n")
    root = host.work / "sets"
    spade(root)
    pairs = {"name": "folder", "root": "sets"}
    train = {"task": "pairs.task:Pairs", "batch_size": 2, "pairs": pairs}
    job = {"gpus_per_node": 0}
    host.write_job({"name": "test", "site": site, "code": "code", "train": train, "job": job})

    result = host.hpc_amp("validate", "job.yaml")
    assert result.returncode == 0, result.stderr
    assert f"train.pairs: 2 pairs for training, 2 for evaluation in {root}" in result.stdout

    (root / "train_label" / "000000000001.png").unlink()
    result = host.hpc_amp("validate", "job.yaml")
    assert f"train.pairs: 1 of 2 files in {root}/train_img have no partner in" in result.stderr
    assert (result.returncode, result.stderr.startswith("note: on this machine, ")) == (
        (2, False) if site == "local" else (0, True)
    )
    result = host.hpc_amp("doctor", "job.yaml", "--json")
    (found,) = [each for each in json.loads(result.stdout) if each["id"] == "data"]
    assert found["severity"] == ("error" if site == "local" else "warning")
    assert f"train.pairs: 1 of 2 files in {root}/train_img" in found["what"]
