"""What a trained generator is asked to make, and how files become its input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hpc_amp.gan.data.config import GanData
from hpc_amp.gan.data.reading import ImageFiles, whole_view
from hpc_amp.gan.inputs import sequences_of


@dataclass(frozen=True, slots=True)
class Request:
    """What to make images from.

    `files` are the inputs, below `folder`; `rank` of `ranks` makes every so many batches of them.
    Random numbers of an image depend on `seed` and the file's path below `folder`. Batches have the
    same files for every number of ranks, so that the images are the same, too.
    """

    folder: Path
    files: Sequence[Path]
    style: tuple[Path, ...] = ()
    """Images whose style the outputs get."""
    instances: Path | None = None
    """Folder with the instance map of each label map, under the same name."""
    points: Path | None = None
    """Folder with the points that each input shows, under the same name with the ending `.npy`."""
    direction: str | None = None
    """`a2b` or `b2a`, for models of two domains."""
    seed: int = 0
    batch_size: int = 8
    fps: int | None = None
    """Frames a second of the video of each sequence. None: no video."""
    finetune: int | None = None
    """Steps for which a copy of the generator is trained on the references of each sequence. None:
    the generator stays as it is."""
    rank: int = 0
    ranks: int = 1

    @property
    def options(self) -> set[str]:
        """The names of the options that are given, of those that only some models use."""
        given = {
            "style": self.style,
            "instances": self.instances,
            "points": self.points,
            "direction": self.direction,
            "fps": self.fps,
            "finetune": self.finetune,
        }
        return {name for name, value in given.items() if value}

    def batches(self) -> Iterator[Sequence[Path]]:
        """The files of this rank, `batch_size` at a time."""
        stride = self.batch_size * self.ranks
        for first in range(self.rank * self.batch_size, len(self.files), stride):
            yield self.files[first : first + self.batch_size]

    def sequences(self) -> list[list[Path]]:
        """The files of this rank, for a model of video: all files of a folder are a sequence, in
        the order of their names, and the ranks share the sequences. Raises InputError."""
        return sequences_of(self.files)[self.rank :: self.ranks]

    def seeds(self, files: Sequence[Path]) -> Tensor:
        """A seed for each file: int64 [B] on the CPU."""
        keys = (repr((self.seed, file.relative_to(self.folder).as_posix())) for file in files)
        digests = (hashlib.blake2b(key.encode(), digest_size=7).digest() for key in keys)
        return torch.tensor([int.from_bytes(digest, "little") for digest in digests])


def read_images(files: Sequence[Path], data: GanData, device: torch.device) -> Tensor:
    """Images as the model sees those of an evaluation: float32 [B, 3, H, W] from -1 to 1. Raises
    DataError for a file that cannot be read."""
    source = ImageFiles([str(file) for file in files])
    view = whole_view(data)
    pixels = torch.stack([source.read(number, view) for number in range(len(files))])
    return pixels.to(device).float().div_(127.5).sub_(1)
