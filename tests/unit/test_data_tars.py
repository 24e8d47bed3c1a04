"""Images in tar files are those of the folder that was packed, in the same order, and odd archives
are refused."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.image_folders import load, write_images

from hpc_amp.data import tars
from hpc_amp.data.errors import DataError
from hpc_amp.data.imagefolder import scan
from hpc_amp.data.tars import images_in, problem_of

DOT = "."


def pack(archive: Path, folder: Path, name: str = DOT, form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(archive, "w", format=form) as tar:
        tar.add(folder, name)
    return archive


def write(archive: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(archive, "w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return archive


def link(name: str, goal: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, goal
    return info


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("top", [DOT, "pets"])
def test_the_samples_are_those_of_the_folder(tmp_path: Path, form: int, top: str) -> None:
    root = write_images(tmp_path / "pets", "val", size=(30, 40))
    # Names that sort differently as paths, a long one, one with a line break, and hidden ones.
    odd = ["cat-2/1.png", "dog/a/2.jpg", "dog/a-b/1.png", "dog/é\n.png", f"dog/{'long/' * 45}x.png"]
    for name in (*odd, "dog/._1.png", ".cache/1.png"):
        for split in ("train", "val"):
            (root / split / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30, 40), (len(name), 1, 2)).save(root / split / name)
    archive = pack(tmp_path / "pets.tar", root, top, form)
    folder, packed = scan(root), scan(archive)

    assert (packed.name, packed.classes) == (folder.name, folder.classes)
    for here, there in ((packed.train, folder.train), (packed.test, folder.test)):
        assert here.labels == there.labels
        places = [str(image).removeprefix(f"{archive}/{top}/") for image in here.images]
        assert [p.removeprefix(f"{archive}/") for p in places] == [
            str(Path(image).relative_to(root)) for image in there.images
        ]
        for image, path in zip(here.images, there.images, strict=True):
            assert image.content() == Path(path).read_bytes()

    for settings in ({"in_memory": True}, {"image_size": 16, "in_memory": False, "workers": 2}):
        loaded = [load(place, **settings) for place in (archive, root)]
        for passes in (
            [data.training.epoch(1) for data in loaded],
            [d.evaluation() for d in loaded],
        ):
            for mine, theirs in zip(*passes, strict=True):
                pairs = zip(mine, theirs, strict=True)
                assert all(torch.equal(*pair) for pair in _tensors(pairs))


def _tensors(pairs: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of tensors, also of those in micro-batches."""
    flat = []
    for mine, theirs in pairs:
        if isinstance(mine, torch.Tensor):
            flat.append((mine, theirs))
        else:
            flat += zip(mine, theirs, strict=True)
    assert flat
    return flat


def test_links_lead_to_files_in_the_archive(tmp_path: Path) -> None:
    archive = write(
        tmp_path / "a.tar",
        ("train/a/1.png", b"old"),
        link("train/a/2.png", "train/a/1.png", tarfile.LNKTYPE),
        link("train/a/3.png", "../../.store/x", tarfile.SYMTYPE),
        link("train/a/4.png", "3.png", tarfile.SYMTYPE),
        (".store/x", b"stored"),
        ("train/a/1.png", b"newer"),  # as `tar -r` adds it
    )
    content = {image.name: image.content() for image in images_in(archive)}
    assert content == {
        "train/a/1.png": b"newer",
        "train/a/2.png": b"newer",
        "train/a/3.png": b"stored",
        "train/a/4.png": b"stored",
    }


@pytest.mark.parametrize("before", ["/", "BZ/", "/data/sets/pets/", "train/"])
def test_any_name_of_the_folder(tmp_path: Path, before: str) -> None:
    """Also if all names begin at the root, if they have several folders in common, and if the first
    one looks like the start of another format."""
    names = [f"{before}{split}/a/1.png" for split in ("train", "test")]
    archive = write(
        tmp_path / "a.tar",
        *((name, name.encode()) for name in names),
        link(f"{before}train/a/2.png", names[0], tarfile.LNKTYPE),
        link(".hidden", "nowhere", tarfile.SYMTYPE),
    )
    assert [image.content().decode() for image in scan(archive).train.images] == [names[0]] * 2


def _cut_in_a_file(content: bytes) -> bytes:
    return content[: content.index(b"IEND") - 9]


def _cut_between_files(content: bytes) -> bytes:
    return content[: content.rindex(b"ustar") - 257]


def _overwritten(content: bytes) -> bytes:
    at = content.rindex(b"ustar") - 257
    return content[:at] + b"x" * 512 + content[at + 512 :]


def _joined(content: bytes) -> bytes:
    return content + content


def _text(content: bytes) -> bytes:
    return b"train a network\n" * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (gzip.compress, r"is compressed \(gzip\): unpack it to a tar file"),
        (_text, "is not a tar file"),
        (lambda content: b"", "is not a tar file"),
        (_cut_in_a_file, "cannot be read: unexpected end of data"),
        (_cut_between_files, "is cut off or damaged at byte"),
        (_overwritten, "is cut off or damaged at byte"),
        (_joined, r"has more after its end at byte [\d,]+: .* `tar -A` joins them"),
    ],
)
def test_odd_archives(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    archive = pack(tmp_path / "pets.tar", write_images(tmp_path / "pets"))
    archive.write_bytes(change(archive.read_bytes()))
    with pytest.raises(DataError, match=f"{archive} {message}"):
        load(archive)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("train/a/1.txt", b"")], r"no images in .*: expected train/<class>/\*"),
        ([("a/1.png", b"")], r"no image folder in .*: expected train/<class>/\*"),
        ([("train/1.png", b""), ("test/1.png", b"")], "no image folder in"),
        ([("train/a/1.png", b""), ("test/b/1.png", b"")], "test differ: a, b exist in only one"),
        ([link("train/a/1.png", "2.png", tarfile.SYMTYPE)], r"1\.png is a link to train/a/2\.png"),
        ([link("train/a/1.png", "1.png", tarfile.SYMTYPE)], r"1\.png is a link to train/a/1\.png"),
        (
            [("train/a/1.png", b""), ("test/a/1.png", b""), link("train/b", "a", tarfile.SYMTYPE)],
            "train/b is a link to train/a, which is no file in the archive: .* `tar -h`",
        ),
        (
            [("train/a/1.png", b"x"), ("test/a/1.png", b"x")],
            r"a\.tar/train/a/1\.png cannot be read",
        ),
    ],
)
def test_archives_of_something_else(tmp_path: Path, members: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(write(tmp_path / "a.tar", *members))


def test_an_archive_that_shrinks_is_named(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", ("train/a/1.png", b"x" * 4000))
    (image,) = images_in(archive)
    os.truncate(archive, 1024)
    with pytest.raises(OSError, match=f"{archive} ends in it"):
        image.content()


def test_a_long_list_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used as long as the archive is the same."""
    archive = write(tmp_path / "a.tar", ("train/a/1.png", b"one"), ("train/a/\udcff.png", b"two"))
    kept = tmp_path / "a.tar.list.json"
    first = images_in(archive)
    assert not kept.exists()

    monkeypatch.setattr(tars, "KEPT_FROM", 2)
    images_in(archive)
    with monkeypatch.context() as patch:
        patch.setattr(tars, "_find_images", lambda archive: pytest.fail("looked again"))
        assert [*images_in(archive)] == [*first]

    for damaged in ("", "[]", '{"archive": 1}', kept.read_text()[:40]):
        kept.write_text(damaged)
        assert [*images_in(archive)] == [*first]
        assert json.loads(kept.read_text())["names"] == first.names
    write(archive, ("train/a/1.png", b"newer"), ("train/a/2.png", b"newer"))
    assert [image.content() for image in images_in(archive)] == [b"newer"] * 2


def test_a_list_that_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    archive = write(tmp_path / "a.tar", ("train/a/1.png", b"one"))
    (tmp_path / "a.tar.list.json").mkdir()
    monkeypatch.setattr(tars, "KEPT_FROM", 1)
    assert len(images_in(archive)) == 1
    assert "the list of its 1 images cannot be kept" in "\n".join(logged)


def test_an_archive_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    archive = write(tmp_path / "a.tar", ("train/a/1.png", b"one"))
    assert problem_of(archive) is None
    monkeypatch.setattr(Path, "open", refuse)
    assert problem_of(archive) == f"{archive} cannot be read: Permission denied"


def test_members_are_a_sequence(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", *((f"{name}.png", name.encode()) for name in "abcd"))
    images = images_in(archive)
    assert [image.content() for image in images[1:3]] == [b"b", b"c"]
    assert images[-1].content() == b"d" and images[::2].names == ["a.png", "c.png"]
    assert [image.content() for image in images.chosen([3, 0])] == [b"d", b"a"]
