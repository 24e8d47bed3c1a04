"""One look at a folder: each folder in it is read once, and what is odd in it is one clear line."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.gandata import write_image, write_map
from support.training import CPU, settings
from support.video import write_faces, write_videos
from torch import Tensor

from hpc_amp.config.checks import find_data
from hpc_amp.config.schema import from_plain
from hpc_amp.data.errors import DataError
from hpc_amp.data.names import names_in
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError, JobError, KeyProblem
from hpc_amp.files import replacing
from hpc_amp.gan.data.config import ClassData, GanData, PairedData, UnpairedData
from hpc_amp.gan.data.reading import MapFiles
from hpc_amp.gan.data.training import (
    prepare_classes,
    prepare_paired,
    prepare_references,
    prepare_unpaired,
    prepare_videos,
)
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import find_files, images_below
from hpc_amp.gan.video.config import ReferenceData, VideoData
from hpc_amp.tasks.fs_vid2vid.config import FsVid2vidConfig
from hpc_amp.tasks.fs_vid2vid.task import _folder_of_references
from hpc_amp.tasks.funit.config import FunitConfig
from hpc_amp.tasks.spade.config import SpadeConfig
from hpc_amp.tasks.unit.config import UnitConfig
from hpc_amp.tasks.vid2vid.config import Vid2vidConfig
from hpc_amp.train import generate

SPLITS = ("train", "test")


def write_pairs(root: Path) -> None:
    for split in SPLITS:
        for number in range(2):
            write_image(root / f"{split}_img/{number}.png", (number, 0, 0))
            write_map(root / f"{split}_label/{number}.png", number)
            write_map(root / f"{split}_inst/{number}.png", number)


def write_cityscapes(root: Path) -> None:
    for split in ("train", "val"):
        for city in "ab":
            write_image(root / f"leftImg8bit/{split}/{city}/0_leftImg8bit.png", (0, 0, 0))
            for kind in ("labelIds", "instanceIds"):
                write_map(root / f"gtFine/{split}/{city}/0_gtFine_{kind}.png", 0)


def write_domains(root: Path) -> None:
    for split in SPLITS:
        for domain in "AB":
            write_image(root / f"{split}{domain}/0.png", (0, 0, 0))


def write_classes(root: Path) -> None:
    for split in SPLITS:
        for name in "abc":
            for number in range(2):
                write_image(root / f"{split}/{name}/{number}.png", (0, 0, 0))


def write_sequences(root: Path) -> None:
    write_videos(root)
    write_faces(root)
    for part in ("A", "B", "inst"):
        shutil.copytree(root / f"test_{part}", root / f"test_ref_{part}")


KINDS: dict[str, tuple[Callable[[Path], None], type[Any], Callable[..., Any], dict[str, Any]]] = {
    "pairs": (write_pairs, SpadeConfig, prepare_paired, {"instances": True}),
    "cityscapes": (write_cityscapes, SpadeConfig, prepare_paired, {"instances": True}),
    "domains": (write_domains, UnitConfig, prepare_unpaired, {}),
    "classes": (write_classes, FunitConfig, prepare_classes, {"unseen": 1}),
    "videos": (
        write_sequences,
        Vid2vidConfig,
        prepare_videos,
        {"labels": 4, "instances": True, "points": "known", "regions": ["face"]},
    ),
    "references": (write_sequences, FsVid2vidConfig, prepare_references, {"labels": 4}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_validate_and_training_read_each_folder_once_and_find_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, config, prepare, keys = KINDS[kind]
    write(tmp_path)
    images = {"name": "folder", "root": str(tmp_path), "image_size": [16], "workers": 0, **keys}
    train = from_plain(config, {"images": images, "batch_size": 1})
    reads: Counter[str] = Counter()

    def counted(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reading(folder: Any = ".") -> Any:
            reads[str(folder)] += 1
            return read(folder)

        return reading

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    (found,) = find_data(train)
    assert found.usable, found.text
    of_validate = reads.copy()
    assert set(of_validate.values()) == {1}
    reads.clear()
    prepared = prepare(train.images, train, World(), CPU)
    assert reads == of_validate
    assert found.text.startswith(f"{prepared.training.samples} ")


# ---- what is odd in a folder ---------------------------------------------------------------------


def wrong(root: Path, data: type[GanData] = PairedData, **keys: Any) -> str:
    """The one line of what is wrong with a folder."""
    made = from_plain(data, {"name": "folder", "root": str(root), **keys})
    with pytest.raises(DataError) as caught:
        made.scan(settings(batch_size=1))
    return str(caught.value).replace(str(root), "ROOT")


def test_a_link_back_is_not_followed_for_ever(tmp_path: Path) -> None:
    """Before, a domain with one had each image 41 times."""
    write_domains(tmp_path)
    (tmp_path / "trainA/here").symlink_to(".")
    (tmp_path / "trainA/down").mkdir()
    (tmp_path / "trainA/down/up").symlink_to("..")
    (tmp_path / "trainA/other").symlink_to(tmp_path / "trainB")
    (tmp_path / "trainB/back").symlink_to(tmp_path / "trainA")
    data = UnpairedData(name="folder", root=str(tmp_path))
    files = data.scan(settings(batch_size=1)).train
    assert files.a == [str(tmp_path / "trainA" / name) for name in ("0.png", "other/0.png")]
    assert files.b == [str(tmp_path / "trainB" / name) for name in ("0.png", "back/0.png")]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    """A folder of links whose goals are not mounted had images which no step could read."""
    write_pairs(tmp_path)
    (tmp_path / "train_img/readme.txt").symlink_to("nothing")
    names_in(tmp_path / "train_img")
    for part in ("img", "label"):
        (tmp_path / f"train_{part}/2.png").symlink_to("/not/mounted/2.png")
    assert wrong(tmp_path) == (
        "ROOT/train_img/2.png is a link to /not/mounted/2.png, which does not exist"
    )


def test_a_folder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, its images were left out in silence. The superuser of a test may read everything."""
    write_domains(tmp_path)
    closed = tmp_path / "trainA/closed"
    write_image(closed / "1.png", (0, 0, 0))
    scandir = os.scandir

    def refusing(folder: Any) -> Any:
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    assert wrong(tmp_path, UnpairedData) == "ROOT/trainA/closed cannot be read: Permission denied"


def test_only_files_are_data(tmp_path: Path) -> None:
    """A pipe is waited for without end. Zip files from macOS have hidden files in a folder."""
    write_classes(tmp_path)
    os.mkfifo(tmp_path / "train/a/pipe.png")
    (tmp_path / "train/a/folder.png").mkdir()
    (tmp_path / "train/__MACOSX/a").mkdir(parents=True)
    (tmp_path / "train/__MACOSX/a/._0.png").touch()
    (tmp_path / "train/a/Thumbs.db").touch()
    found = ClassData(name="folder", root=str(tmp_path), unseen=1).scan(settings(batch_size=1))
    assert (found.classes, found.unseen, found.samples) == (("a", "b"), ("c",), 4)


def test_a_test_set_without_labels_is_no_evaluation(tmp_path: Path) -> None:
    """As many data sets have one; that of `val` has labels."""
    write_pairs(tmp_path)
    shutil.rmtree(tmp_path / "test_label")
    both = "test_img and test_label, or val_img and val_label"
    assert wrong(tmp_path) == f"no pairs for evaluation in ROOT: expected {both}"
    for part in ("img", "label"):
        shutil.copytree(tmp_path / f"train_{part}", tmp_path / f"val_{part}")
    data = PairedData(name="folder", root=str(tmp_path))
    (first, _) = data.scan(settings(batch_size=1)).test.images
    assert first == f"{tmp_path}/val_img/0.png"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and a newline."""
    write_pairs(tmp_path)
    for part in ("img", "label"):
        for name in (b"\xff\xfe.png", b"new\nline.png"):
            place = os.fsencode(tmp_path / f"train_{part}") + b"/" + name
            shutil.copy(tmp_path / f"train_{part}/1.png", place)
    data = PairedData(name="folder", root=str(tmp_path), image_size=[8], workers=0)
    prepared = prepare_paired(data, settings(batch_size=4), World(), CPU)
    assert [len(batch) for (batch,) in prepared.training.epoch(0)] == [4]


def test_a_file_of_names_from_windows(tmp_path: Path) -> None:
    write_classes(tmp_path / "data")
    (tmp_path / "names.txt").write_bytes("\ufeffb\r\n".encode())
    keys = {"root": str(tmp_path / "data"), "unseen_file": str(tmp_path / "names.txt")}
    found = ClassData(name="folder", **keys).scan(settings(batch_size=1))
    assert (found.classes, found.unseen) == (("a", "c"), ("b",))


def test_a_map_that_is_a_jpeg_is_refused(tmp_path: Path) -> None:
    """Its numbers are near those that were written, and may be other labels."""
    file = tmp_path / "map.jpg"
    Image.new("L", (16, 16), 3).save(file)
    with pytest.raises(DataError, match=r"map\.jpg is a JPEG, which changes the numbers"):
        MapFiles([str(file)]).open(0)


def test_sequences_are_long_enough_also_for_references(tmp_path: Path) -> None:
    """Before, `validate` did not look at them."""
    write_sequences(tmp_path)
    assert wrong(tmp_path, ReferenceData, references=5) == (
        "the sequence of ROOT/train_B/scene 0/frame-000.png has 4 frames, and references=5 needs "
        "as many"
    )
    for part in ("A", "B"):
        (tmp_path / f"test_ref_{part}/scene 1/frame-003.png").unlink()
    few = "test_ref_B/scene 1/frame-000.png has 3 frames, and references=4 needs as many"
    assert wrong(tmp_path, ReferenceData, references=4).endswith(few)
    shutil.rmtree(tmp_path / "test_ref_A")
    assert wrong(tmp_path, ReferenceData) == "there is no folder ROOT/test_ref_A"
    write_image(tmp_path / "train_B/alone.png", (0, 0, 0))
    assert wrong(tmp_path, VideoData) == (
        "ROOT/train_B/alone.png is a frame outside of the folders of sequences"
    )


@pytest.mark.parametrize(
    ("config", "keys", "said"),
    [
        (SpadeConfig, {"images": {"load_size": [16]}}, "images.load_size: [16] is smaller than"),
        (SpadeConfig, {"batch_size": 513}, "batch_size: 513 is more than the 512 training samples"),
        (
            FunitConfig,
            {"batch_size": 641, "images": {"unseen": 4}},
            "batch_size: 641 is more than the 640 training samples of the synthetic set",
        ),
        (FunitConfig, {"images": {"unseen": 23}}, "images.unseen: of 24 synthetic classes, 23"),
        (
            Vid2vidConfig,
            {"batch_size": 1, "images": {"image_size": [256], "synthetic": {"frames": 2}}},
            "images.synthetic.frames: 2 are less than the 3 that the temporal discriminator",
        ),
        (
            FsVid2vidConfig,
            {"batch_size": 1, "images": {"references": 9, "synthetic": {"frames": 8}}},
            "images.references: 9 is more than the frames of a sequence",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_a_job_is_submitted(
    config: type[Any], keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(KeyProblem) as caught:
        from_plain(config, keys).check_keys()
    assert str(caught.value).startswith(f"train.{said}")


# ---- inputs of a generator -----------------------------------------------------------------------


def test_what_a_generator_needs_is_looked_for_before_it_begins(tmp_path: Path) -> None:
    """By the rule that submits a job, and by the ranks."""
    write_pairs(tmp_path)
    maps, output = tmp_path / "train_label", tmp_path / "out"
    files, _ = find_files(maps, output, instances=tmp_path / "train_inst")
    assert files == images_below(maps)
    (tmp_path / "train_inst/1.png").unlink()
    with pytest.raises(InputError, match=r"no instance map .*train_inst/1\.png of .*label/1\.png"):
        find_files(maps, output, instances=tmp_path / "train_inst")
    (tmp_path / "points").mkdir()
    with pytest.raises(InputError, match=r"no file .*points/0\.npy with the points of .*0\.png"):
        find_files(maps, output, points=tmp_path / "points")
    with pytest.raises(InputError, match=r"is the folder of .*train_img, which is read"):
        find_files(maps, tmp_path / "train_img", style=tmp_path / "train_img")


def test_maps_of_instances_may_have_the_names_of_cityscapes(tmp_path: Path) -> None:
    """As those that a training reads."""
    write_map(tmp_path / "maps/a_gtFine_labelIds.png", 0)
    write_map(tmp_path / "inst/a_gtFine_instanceIds.png", 0)
    find_files(tmp_path / "maps", tmp_path / "out", instances=tmp_path / "inst")


def test_a_stop_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    """Before, a signal left the hidden file of the video that was being written."""
    before = signal.getsignal(signal.SIGTERM)

    def write() -> None:
        with generate.stops_cleanly(), replacing(tmp_path / "video.mp4") as new:
            new.touch()
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        write()
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_folder_of_references_without_the_images_is_named(tmp_path: Path) -> None:
    write_map(tmp_path / "A/scene/0.png", 0)
    write_image(tmp_path / "B/scene/0.png", (0, 0, 0))
    request = Request(tmp_path, [], style=(tmp_path / "B/scene/0.png",))
    assert _folder_of_references(request) == tmp_path


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """Before, it was a traceback. `Loaded` stands for a generator."""

    class Loaded:
        def images(self, request: Request) -> Iterator[tuple[Path, Tensor]]:
            yield from ((file, torch.zeros(3, 4, 4)) for file in request.files)

    request = Request(tmp_path, [tmp_path / "a.png"])
    (tmp_path / "out/a.png").mkdir(parents=True)
    with pytest.raises(JobError, match=r"out cannot be written to: .*Is a directory"):
        generate.write_images(Loaded(), request, tmp_path / "out", print)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"file cannot be written to: .*File exists"):
        generate.write_images(Loaded(), request, tmp_path / "file", print)  # type: ignore[arg-type]
