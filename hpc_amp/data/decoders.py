"""What makes batches of pixels from image files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import PIL
import torch
from torch import Tensor

from hpc_amp.data.decode import CENTRE, centre_view, training_part, training_view
from hpc_amp.data.memory import put
from hpc_amp.data.pictures import Box, Location, centre_box
from hpc_amp.data.readers import Readers


@dataclass(frozen=True, slots=True)
class View:
    """What is used of the image at `place`.

    With a `seed`, the part is random if `crop` is set, and half of all seeds mirror it if `flip` is
    set. Without a seed, it is the centre, as evaluations see it.
    """

    place: Location
    seed: str | None = None
    crop: bool = False
    flip: bool = False

    def __str__(self) -> str:
        return str(self.place)

    def part(self, width: int, height: int) -> tuple[Box, bool]:
        """The box that is used of an image of this size in pixels, and whether it is mirrored."""
        if self.seed is None:
            return centre_box(width, height, CENTRE), False
        return training_part(width, height, self.seed, crop=self.crop, flip=self.flip)


class Decoder(ABC):
    """Decodes image files, which the threads of `readers` read, to squares of `side` pixels."""

    def __init__(self, side: int, readers: Readers, device: torch.device) -> None:
        self.side, self.readers, self.device = side, readers, device

    @property
    @abstractmethod
    def name(self) -> str:
        """The library and its version, and where it runs if there is a choice."""

    @abstractmethod
    def read(self, batches: Iterable[Sequence[View]]) -> Iterator[Tensor]:
        """The pixels of each batch of views, in order: uint8 [N, 3, side, side] on the device, with
        the channels of a pixel as neighbours in memory.

        They depend on the views alone. Raises DataError, which names the file, when the batch of a
        damaged file is requested. Several passes may alternate, and end early.
        """


class PillowDecoder(Decoder):
    """Decodes with Pillow, each image in a thread of its own."""

    @property
    def name(self) -> str:
        """Pillow and its version."""
        return f"Pillow {PIL.__version__}"

    def read(self, batches: Iterable[Sequence[View]]) -> Iterator[Tensor]:
        """See `Decoder.read`."""
        for images in self.readers.read(lambda view: pixels_of(view, self.side), batches):
            rows = torch.stack([image.permute(1, 2, 0) for image in images])
            yield put(rows.permute(0, 3, 1, 2), self.device)


def pixels_of(view: View, side: int) -> Tensor:
    """The pixels of a view, decoded with Pillow: uint8 [3, side, side]. Raises DataError."""
    if view.seed is None:
        return centre_view(view.place, side)
    return training_view(view.place, view.seed, side, crop=view.crop, flip=view.flip)
