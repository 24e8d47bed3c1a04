"""What a trained generator is asked to make, and how files become its input."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.config import GanData
from hpc_amp.gan.data.folders import SUFFIXES
from hpc_amp.gan.data.reading import ImageFiles, whole_view


@dataclass(frozen=True, slots=True)
class Request:
    """What to make images from.

    `files` are this rank's inputs, below `folder`. Random numbers of an image depend on `seed` and
    the file's path below `folder`, so they are the same for every number of ranks.
    """

    folder: Path
    files: Sequence[Path]
    style: tuple[Path, ...] = ()
    """Images whose style the outputs get."""
    instances: Path | None = None
    """Folder with the instance map of each label map, under the same name."""
    direction: str | None = None
    """`a2b` or `b2a`, for models of two domains."""
    seed: int = 0
    batch_size: int = 8

    def batches(self) -> Iterator[Sequence[Path]]:
        """The files, `batch_size` at a time."""
        for first in range(0, len(self.files), self.batch_size):
            yield self.files[first : first + self.batch_size]

    def seeds(self, files: Sequence[Path]) -> Tensor:
        """A seed for each file: int64 [B] on the CPU."""
        keys = (repr((self.seed, file.relative_to(self.folder).as_posix())) for file in files)
        digests = (hashlib.blake2b(key.encode(), digest_size=7).digest() for key in keys)
        return torch.tensor([int.from_bytes(digest, "little") for digest in digests])


def images_below(folder: Path) -> list[Path]:
    """The image files in `folder` and the folders in it, sorted; or the file itself. Raises
    DataError where there is none."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    found = [
        Path(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name[0] != "." and os.path.splitext(name)[1].lower() in SUFFIXES
    ]
    if not found:
        raise DataError(f"there is no image in {folder}")
    return sorted(found)


def output_of(file: Path, folder: Path, output: Path) -> Path:
    """Where the image made from `file`, which is below `folder`, is written."""
    return (output / file.relative_to(folder)).with_suffix(".png")


def check_outputs(files: Sequence[Path], folder: Path, output: Path) -> None:
    """Raise DataError where images would be written among the inputs, which could replace them and
    change their list while ranks read it, and where two would have one name."""
    if len(files) > 1 and output.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"--output {output} is in the folder of the inputs, {folder}")
    seen: dict[Path, Path] = {}
    for file in files:
        place = output_of(file, folder, output)
        if place in seen:
            raise DataError(f"{seen[place]} and {file} would both become {place}")
        if place.resolve() == file.resolve():
            raise DataError(f"the image made from {file} would replace it: name another --output")
        seen[place] = file


def read_images(files: Sequence[Path], data: GanData, device: torch.device) -> Tensor:
    """Images as the model sees those of an evaluation: float32 [B, 3, H, W] from -1 to 1. Raises
    DataError for a file that cannot be read."""
    source = ImageFiles([str(file) for file in files])
    view = whole_view(data)
    pixels = torch.stack([source.read(number, view) for number in range(len(files))])
    return pixels.to(device).float().div_(127.5).sub_(1)
