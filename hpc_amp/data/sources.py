"""The public image sets: where their files are, how they are downloaded and read."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import socket
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.data.images import Images, ImageSet

TIMEOUT_S = 20.0
"""Seconds that a server may be silent. By default, torchvision waits for ever if a firewall drops
packets."""


class PublicSet(ABC):
    """A set that torchvision can download. `folder` is what a download creates below the data
    root."""

    name: str
    folder: str
    torchvision_name: str

    @abstractmethod
    def find(self, root: Path) -> Path | None:
        """The folder that contains the files, or None."""

    @abstractmethod
    def read(self, folder: Path) -> ImageSet:
        """Read the set from the files in `folder`. May raise OSError, EOFError, RuntimeError,
        ValueError or zlib.error if they are damaged."""

    def download(self, root: Path) -> None:
        """Download the files to `root`. Raises whatever the network and torchvision raise.

        The files are downloaded to a temporary folder first. So a download that is killed, or two
        at the same time, never leave an incomplete set.
        """
        import torchvision  # it takes about as long as torch: only what uses it imports it

        root.mkdir(parents=True, exist_ok=True)
        fetch = getattr(torchvision.datasets, self.torchvision_name)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as partial:
            with _bounded(), _silent():
                fetch(partial, download=True)
            try:
                os.replace(Path(partial, self.folder), root / self.folder)
            except OSError:
                if self.find(root) is None:  # unless another job was faster
                    raise

    def load(self, root: Path) -> ImageSet:
        """Read the set from the files below `root`. Raises DataError if they are damaged."""
        folder = self.find(root)
        if folder is None:
            raise DataError(f"the {self.name} files in {root} are not visible from every node")
        try:
            return self.read(folder)
        except (OSError, EOFError, RuntimeError, ValueError, zlib.error) as error:
            raise DataError(
                f"the {self.name} files in {folder} are damaged ({error}): "
                "delete the folder and download them again"
            ) from error


class Cifar(PublicSet):
    """CIFAR-10 or CIFAR-100 in the Python format (Krizhevsky, 2009)."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.name = f"CIFAR-{classes}"
        self.torchvision_name = f"CIFAR{classes}"
        self.folder = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"

    def find(self, root: Path) -> Path | None:
        """`root`/cifar-...-python, or `root` if that is the folder itself."""
        if root.name == self.folder and root.is_dir():
            return root
        return root / self.folder if (root / self.folder).is_dir() else None

    def read(self, folder: Path) -> ImageSet:
        """Read the set, and check it against the published checksums."""
        import torchvision

        reader = getattr(torchvision.datasets, self.torchvision_name)

        def split(train: bool) -> Images:
            part: Any = reader(folder.parent, train=train)
            pixels = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
            return Images(pixels, torch.tensor(part.targets))

        return ImageSet(self.name, self.classes, split(train=True), split(train=False))


class FashionMnist(PublicSet):
    """Fashion-MNIST in the idx format of MNIST (Xiao et al., 2017), compressed or not."""

    name = "Fashion-MNIST"
    folder = "FashionMNIST"
    torchvision_name = "FashionMNIST"

    def find(self, root: Path) -> Path | None:
        """torchvision's `root`/`folder`/raw, or `root` if the files are in it. Debian's package
        `dataset-fashion-mnist` has them in /usr/share/datasets/fashion-mnist."""
        for folder in (root / self.folder / "raw", root):
            if any(folder.glob("train-images-idx3-ubyte*")):
                return folder
        return None

    def read(self, folder: Path) -> ImageSet:
        """Read the set. Raises ValueError, OSError or zlib.error if a file is missing or
        damaged."""

        def split(prefix: str) -> Images:
            pixels = _read_idx(folder / f"{prefix}-images-idx3-ubyte", dimensions=3)
            labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte", dimensions=1)
            if len(pixels) != len(labels):
                raise ValueError(f"{len(pixels)} images with {len(labels)} labels")
            return Images(pixels[:, None], labels.long())

        return ImageSet(self.name, 10, split("train"), split("t10k"))


class Mnist(FashionMnist):
    """MNIST (LeCun et al., 1998)."""

    name = folder = torchvision_name = "MNIST"


PUBLIC_SETS: dict[str, PublicSet] = {
    "cifar10": Cifar(10),
    "cifar100": Cifar(100),
    "fashion_mnist": FashionMnist(),
    "mnist": Mnist(),
}


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """Read a uint8 array from the idx file `path` or `path`.gz.

    The format is: two zeros, the type (8: unsigned bytes), the number of dimensions, their sizes as
    big-endian 32-bit numbers, the bytes. Raises ValueError, OSError or zlib.error.
    """
    if path.exists():
        content = path.read_bytes()
    else:
        content = gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())
    start = 4 + 4 * dimensions
    if len(content) <= start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"{path.name} is not an idx file of {dimensions} dimensions")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start)
    if values.numel() != torch.Size(shape).numel():
        raise ValueError(f"{path.name} holds {values.numel()} bytes for the shape {shape}")
    return values.view(shape)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard the progress bars of torchvision, which would fill the log of a job."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
