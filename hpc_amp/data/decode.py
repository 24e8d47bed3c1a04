"""Decodes image files to uint8 tensors, all at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import centre_box, open_rgb, resize


def to_pixels(image: Image.Image) -> Tensor:
    """An RGB image as uint8 [3, H, W]."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, 3).permute(2, 0, 1)


def decode_all(paths: Sequence[str], height: int, width: int, *, scale: bool) -> Tensor:
    """Decode images in parallel threads. Returns uint8 [N, 3, height, width].

    With `scale`, the central square of each image is resized to that size. Otherwise, raises
    DataError for an image of another size.
    """
    pixels = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)

    def decode(first: int) -> None:
        for at in range(first, min(first + 64, len(paths))):
            image = open_rgb(paths[at])
            if scale:
                image = resize(image, height, centre_box(image.width, image.height))
            if image.size != (width, height):
                raise DataError(
                    f"the image {paths[at]} has {image.width} x {image.height} pixels, but others "
                    f"have {width} x {height}: set data.image_size to resize all of them"
                )
            pixels[at] = to_pixels(image)

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as threads:
        list(threads.map(decode, range(0, len(paths), 64)))
    return pixels
