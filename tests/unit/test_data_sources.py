"""The public sets, read from small files in their true formats."""

import gzip
import hashlib
import pickle
import socket
import struct
from pathlib import Path

import numpy
import pytest
import torch
import torchvision

from hpc_amp.config import schema
from hpc_amp.data import sources
from hpc_amp.data.prepare import prepare
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError

CPU = torch.device("cpu")


def load(root: Path, name: str, **data: object):
    config = schema.Train(
        batch_size=4, data=schema.Data(name=name, root=str(root), download=False, **data)
    )
    return prepare(config, World(), CPU)


def write_idx(path: Path, array: numpy.ndarray, compress: bool) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    if compress:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def write_fashion(folder: Path, compress: bool) -> numpy.ndarray:
    folder.mkdir(parents=True)
    images = numpy.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=numpy.uint8)
    labels = numpy.arange(30, dtype=numpy.uint8) % 10
    for prefix, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[part], compress)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels[part], compress)
    return images


@pytest.mark.parametrize(
    ("name", "title", "layout"),
    [
        ("fashion_mnist", "Fashion-MNIST", "."),
        ("fashion_mnist", "Fashion-MNIST", "FashionMNIST/raw"),
        ("mnist", "MNIST", "MNIST/raw"),
    ],
)
@pytest.mark.parametrize("compress", [True, False])
def test_mnist_and_fashion_mnist_from_idx_files(
    tmp_path: Path, name: str, title: str, layout: str, compress: bool
) -> None:
    root = tmp_path / "data"
    images = write_fashion(root / layout, compress)
    data = load(root, name)
    assert (data.name, data.synthetic) == (title, False)
    assert (data.classes, data.channels, data.image_size) == (10, 1, 28)
    assert data.training.samples == 20
    pixels = data.training.images.pixels
    assert numpy.array_equal(pixels[:, 0].numpy(), images[:20])
    labels = torch.cat([labels for _, labels in data.evaluation()])
    assert labels.tolist() == list(range(10))


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"x" * 900]
)
def test_damaged_idx_files_are_told(tmp_path: Path, damage) -> None:
    write_fashion(tmp_path / "data", compress=False)
    file = tmp_path / "data" / "t10k-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"Fashion-MNIST files in .* are damaged"):
        load(tmp_path / "data", "fashion_mnist", if_missing="synthetic")


def test_a_damaged_compressed_file_is_told(tmp_path: Path) -> None:
    write_fashion(tmp_path / "data", compress=True)
    file = tmp_path / "data" / "train-images-idx3-ubyte.gz"
    start = file.read_bytes()[:10]  # without a name, the first block is next
    file.write_bytes(start + b"\xff" * 99)
    with pytest.raises(DataError, match=r"Fashion-MNIST files in .* are damaged"):
        load(tmp_path / "data", "fashion_mnist")


def test_a_missing_label_file_is_told(tmp_path: Path) -> None:
    write_fashion(tmp_path / "data", compress=True)
    (tmp_path / "data" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"damaged .*t10k-labels-idx1-ubyte\.gz"):
        load(tmp_path / "data", "fashion_mnist")


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, classes: int) -> numpy.ndarray:
    """The pickles of CIFAR with few images, and torchvision told their checksums."""
    reader = getattr(torchvision.datasets, f"CIFAR{classes}")
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    key = "labels" if classes == 10 else "fine_labels"
    pixels = numpy.random.default_rng(0).integers(0, 256, (60, 3072), dtype=numpy.uint8)
    first = 0
    for attribute in ("train_list", "test_list"):
        entries = []
        for name, _ in getattr(reader, attribute):
            rows = slice(first, first + 10)
            content = pickle.dumps({"data": pixels[rows], key: list(range(10))}, protocol=2)
            (folder / name).write_bytes(content)
            entries.append([name, hashlib.md5(content).hexdigest()])
            first += 10
        monkeypatch.setattr(reader, attribute, entries)
    meta = pickle.dumps({reader.meta["key"]: [str(n) for n in range(classes)]}, protocol=2)
    (folder / reader.meta["filename"]).write_bytes(meta)
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": hashlib.md5(meta).hexdigest()})
    return pixels


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_from_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    pixels = write_cifar(tmp_path, monkeypatch, classes)
    data = load(tmp_path, f"cifar{classes}")
    assert data.name == f"CIFAR-{classes}"
    assert (data.classes, data.channels, data.image_size) == (classes, 3, 32)
    images = data.training.images
    assert len(images) == (50 if classes == 10 else 10)
    assert numpy.array_equal(images.pixels.flatten(1).numpy(), pixels[: len(images)])
    inner = next(tmp_path.iterdir())
    assert load(inner, f"cifar{classes}").training.samples == len(images)


def test_damaged_cifar_is_told_and_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, monkeypatch, 10)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"")
    with pytest.raises(DataError, match=r"CIFAR-10 files in .* are damaged"):
        load(tmp_path, "cifar10", if_missing="synthetic")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fashion_mnist", "imagefolder"])
def test_missing_data_is_one_line_with_the_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"data.if_missing=synthetic") as caught:
        load(tmp_path / "nowhere", name)
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["imagefolder", "cifar10"])
def test_a_folder_that_cannot_be_seen_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is not replaced either. The superuser of a test may enter every folder."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    config = schema.Data(name=name, root=str(tmp_path), if_missing="synthetic")
    with pytest.raises(DataError, match=f"{tmp_path}.* cannot be read: Permission denied"):
        prepare(schema.Train(data=config), World(), CPU)


def test_synthetic_images_stand_in_aloud(tmp_path: Path, logged: list[str]) -> None:
    sizes = schema.Synthetic(train=16, test=8)
    data = load(tmp_path, "cifar10", if_missing="synthetic", synthetic=sizes)
    assert (data.name, data.synthetic) == ("SYNTHETIC", True)
    (said,) = logged
    assert "SYNTHETIC" in said
    assert "CIFAR-10 is not in" in said


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_a_failed_download_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        assert socket.getdefaulttimeout() == sources.TIMEOUT_S
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    config = schema.Train(data=schema.Data(name=name, root=str(tmp_path)))
    with pytest.raises(DataError, match=r"the download failed: .*(no route|train-im)") as caught:
        prepare(config, World(), CPU)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []  # nothing that looks like data
    assert socket.getdefaulttimeout() is None


def test_a_download_appears_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(root: str, download: bool) -> None:
        assert download
        write_fashion(Path(root) / "FashionMNIST" / "raw", compress=False)
        assert not (tmp_path / "FashionMNIST").exists()

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", fetch)
    config = schema.Train(batch_size=4, data=schema.Data(name="fashion_mnist", root=str(tmp_path)))
    assert prepare(config, World(), CPU).training.samples == 20
    assert [path.name for path in tmp_path.iterdir()] == ["FashionMNIST"]
