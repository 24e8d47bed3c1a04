"""Decoding with NVIDIA's DALI: on a GPU, or on the cores of a rank.

DALI gets the box of each image and whether it is mirrored, so the samples are those of Pillow. It
decodes JPEGs that are upright and have no fourth colour; Pillow decodes all other files, and those
that DALI refuses, in the same batch.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.data.decode import resize
from hpc_amp.data.decoders import Decoder, View, pixels_of
from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import UNREADABLE, Box, Location, content_of, is_whole_upright_jpeg
from hpc_amp.data.readers import Readers

log = logging.getLogger(__name__)

CHUNK = 32
"""Images that DALI decodes at once. More would need more memory of the GPU for large images, which
are decoded in their full size."""
TOLERANCE = 4.0
"""By how many levels of 255 the pixels of a test image may differ on average."""


@dataclass(frozen=True, slots=True)
class _Jpeg:
    """The content of a file, the box that is used of it, and whether that is mirrored."""

    content: bytes
    box: Box
    mirrored: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Up to `CHUNK` views of a batch, which a thread decodes together."""

    views: Sequence[View]

    def __str__(self) -> str:
        return f"{self.views[0]}, or one of the {len(self.views) - 1} files that follow it"


class DaliDecoder(Decoder):
    """Decodes with DALI: on `device` if that is a GPU, and otherwise in `threads` threads.

    The threads of `readers` read the files; one at a time has its chunk decoded.
    """

    def __init__(self, side: int, readers: Readers, device: torch.device, threads: int) -> None:
        super().__init__(side, readers, device)
        self.threads = threads
        self._pipeline: Any = None
        self._stream: torch.cuda.Stream | None = None  # for copies that wait for no training step
        self._alone = threading.Lock()
        self._refused: set[Location] = set()

    @property
    def name(self) -> str:
        """DALI, its version, and where it runs."""
        from nvidia import dali

        return f"DALI {dali.__version__} on the {'GPU' if self.device.type == 'cuda' else 'CPU'}"

    def problem(self) -> str | None:
        """Why DALI cannot be used here, or None. Decodes a test image, and the same mirrored."""
        across, down = torch.arange(320) * 255 // 320, torch.arange(240)[:, None]
        bands = (across.expand(240, -1), down.expand(-1, 320), (255 - across - down).abs())
        image = Image.fromarray(torch.stack(bands, dim=2).byte().numpy())
        file = io.BytesIO()
        image.save(file, "JPEG", quality=95)
        box = (40, 20, 200, 220)
        expected = resize(image.crop(box), self.side).permute(1, 2, 0)
        jpegs = [_Jpeg(file.getvalue(), box, mirrored) for mirrored in (False, True)]
        try:
            straight, mirrored = self._run(jpegs).cpu().float()
        except ImportError as error:
            return f"DALI is not installed in the image or environment ({error})"
        except Exception as error:  # DALI does not document what it raises
            return f"DALI cannot decode a test image: {_one_line(error)}"
        by = ((straight - expected).abs().mean(), (mirrored.flip(1) - expected).abs().mean())
        difference = max(by).item()
        if difference > TOLERANCE:
            return f"DALI decodes a test image with other pixels, by {difference:.1f} levels of 255"
        return None

    def read(self, batches: Iterable[Sequence[View]]) -> Iterator[Tensor]:
        """See `Decoder.read`."""
        chunks = (
            [_Chunk(views[at : at + CHUNK]) for at in range(0, len(views), CHUNK)]
            for views in batches
        )
        for parts in self.readers.read(lambda chunk: self._decode(chunk.views), chunks):
            images = [image.to(self.device) for part in parts for image in part]
            if self._stream is not None:
                for image in images:  # its memory is used again after the work of this stream
                    image.record_stream(torch.cuda.current_stream(self.device))
            yield torch.stack(images).permute(0, 3, 1, 2)

    def _decode(self, views: Sequence[View]) -> list[Tensor]:
        """The pixels of a chunk, each uint8 [side, side, 3]. Called in threads."""
        jpegs = [self._open(view) for view in views]
        suitable = [jpeg for jpeg in jpegs if jpeg is not None]
        try:
            decoded = iter(self._run(suitable) if suitable else ())
        except RuntimeError as error:
            if len(views) > 1:
                return self._one_by_one(views, error)
            self._refuse(views[0], error)
            jpegs = [None]
        return [
            pixels_of(view, self.side).permute(1, 2, 0) if jpeg is None else next(decoded)
            for view, jpeg in zip(views, jpegs, strict=True)
        ]

    def _one_by_one(self, views: Sequence[View], error: RuntimeError) -> list[Tensor]:
        """The pixels of a chunk, after this error. Only files that DALI refuses are left to Pillow.
        Raises DataError if it refuses none of them."""
        images = [image for view in views for image in self._decode([view])]
        if self._refused.isdisjoint(view.place for view in views):
            raise DataError(
                f"DALI cannot decode {len(views)} images at once, from {views[0]} on: "
                f"{_one_line(error)}; train.data.decoder=pillow works everywhere"
            )
        return images

    def _refuse(self, view: View, error: RuntimeError) -> None:
        with self._alone:
            first = not self._refused
            self._refused.add(view.place)
        if first:
            log.warning(
                "DALI cannot decode %s: %s; Pillow decodes it, and others that DALI refuses",
                *(view, _one_line(error)),
            )

    def _open(self, view: View) -> _Jpeg | None:
        """The JPEG of a view, or None if it is left to Pillow, which also names damaged files."""
        if view.place in self._refused:
            return None
        try:
            content = content_of(view.place)
            with Image.open(io.BytesIO(content)) as image:
                suitable = (
                    is_whole_upright_jpeg(image, content)
                    and image.mode in ("L", "RGB")
                    and image.info.get("adobe_transform") != 0  # stored as red, green and blue
                )
                return _Jpeg(content, *view.part(*image.size)) if suitable else None
        except UNREADABLE:
            return None

    def _run(self, jpegs: Sequence[_Jpeg]) -> Tensor:
        """uint8 [N, side, side, 3] on the device; the work is done. Raises RuntimeError if DALI
        refuses one of the files."""
        import numpy as np
        from nvidia.dali.plugin.pytorch import feed_ndarray

        boxes = np.array([jpeg.box for jpeg in jpegs], dtype=np.int32)
        inputs = {
            "content": [np.frombuffer(jpeg.content, dtype=np.uint8) for jpeg in jpegs],
            "corner": boxes[:, :2].copy(),  # DALI wants it dense
            "size": boxes[:, 2:] - boxes[:, :2],
            "mirrored": np.array([jpeg.mirrored for jpeg in jpegs], dtype=np.int32),
        }
        shape = (len(jpegs), self.side, self.side, 3)
        with self._alone:
            if self._pipeline is None:
                self._pipeline = self._build()
            try:
                for name, values in inputs.items():
                    self._pipeline.feed_input(name, values)
                (images,) = self._pipeline.run()
                with torch.cuda.stream(self._stream):  # without a GPU, this changes nothing
                    pixels = torch.empty(shape, dtype=torch.uint8, device=self.device)
                    feed_ndarray(images.as_tensor(), pixels, self._stream)
                    if self._stream is not None:
                        self._stream.synchronize()
            except Exception:
                self._pipeline = None  # it cannot be used after an error
                raise
        return pixels

    def _build(self) -> Any:
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        where: dict[str, Any] = {"device": "cpu"}
        number = None
        if self.device.type == "cuda":
            # With 1, all that the GPU's JPEG unit can decode goes there. With less, it would depend
            # on the other images of a chunk which of two decoders an image gets.
            where = {"device": "mixed", "hw_decoder_load": 1.0, "affine": False}
            where["jpeg_fancy_upsampling"] = True  # as on a CPU
            self._stream = self._stream or torch.cuda.Stream(self.device)
            number = self._stream.device.index
        pipeline = Pipeline(
            CHUNK, self.threads, number,
            prefetch_queue_depth=1, exec_async=False, exec_pipelined=False,
        )  # fmt: skip
        with pipeline:
            part = fn.decoders.image_slice(
                fn.external_source(name="content", dtype=types.UINT8, ndim=1),
                fn.external_source(name="corner", dtype=types.INT32, ndim=1),
                fn.external_source(name="size", dtype=types.INT32, ndim=1),
                axis_names="WH", output_type=types.RGB, adjust_orientation=False, **where,
            )  # fmt: skip
            square = fn.resize(
                part, size=(self.side, self.side), interp_type=types.INTERP_LINEAR, antialias=True
            )
            mirrored = fn.external_source(name="mirrored", dtype=types.INT32, ndim=0)
            pipeline.set_outputs(fn.flip(square, horizontal=mirrored))
        pipeline.build()
        return pipeline


def _one_line(error: Exception) -> str:
    """What an error of DALI says after where it was."""
    return " ".join(str(error).rpartition("encountered:")[2].split())[:300]
