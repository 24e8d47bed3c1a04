"""Random crop, flip and cutout of whole batches on the device.

The random numbers of an epoch are drawn at once for all samples, from a generator that depends only
on (seed, epoch), and are looked up by sample. So the changes of an image do not depend on the
number of ranks, on accumulation, on its position in the batch, or on where a run was resumed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hpc_amp.config import schema
from hpc_amp.data.order import generator


class EpochAugmentation:
    """The random changes of all samples in one epoch.

    `samples`: the number of training images.
    `side`: height and width of the images in pixels.
    `device`: where the random numbers are kept, a few bytes for each sample.
    """

    def __init__(
        self,
        config: schema.Augment,
        *,
        samples: int,
        side: tuple[int, int],
        seed: int,
        epoch: int,
        device: torch.device,
    ) -> None:
        self.padding = config.crop
        self.cutout = config.cutout
        self.side = side

        def draw(what: str, count: int) -> Tensor:
            stream = generator(seed, what, epoch)
            return torch.randint(count, (samples,), generator=stream).to(device)

        # Each kind of change has a stream of its own, so switching one off does not affect others.
        span = 2 * self.padding + 1
        self.offset = (draw("top", span), draw("left", span)) if self.padding else None
        self.mirror = draw("mirror", 2) if config.flip else None
        self.centre = (draw("row", side[0]), draw("column", side[1])) if self.cutout else None

    def move(self, pixels: Tensor, samples: Tensor) -> Tensor:
        """Crop and flip images. `pixels` is uint8 [B, H, W, C]; `samples` [B] are the numbers of
        these images in the training set. Returns uint8 [B, H, W, C]."""
        position = torch.arange(len(samples), device=samples.device)
        if self.offset is not None:
            top, left = (offset.index_select(0, samples) for offset in self.offset)
            padded = F.pad(pixels, (0, 0, *[self.padding] * 4))
            pixels = _windows(padded, position, top, left, self.side)
        if self.mirror is not None:
            # Flipping all images and selecting copies whole rows; torch.where works pixel by pixel.
            both = torch.cat((pixels, pixels.flip(2)))
            chosen = position + len(samples) * self.mirror.index_select(0, samples)
            pixels = both.index_select(0, chosen)
        return pixels

    def blank(self, images: Tensor, samples: Tensor) -> Tensor:
        """Set a square of each image to 0, in place (cutout; DeVries & Taylor, 2017). `images` are
        normalised floats [B, C, H, W]. The square may extend beyond the border."""
        if self.centre is None:
            return images

        def inside(centre: Tensor, side: int) -> Tensor:
            first = centre.index_select(0, samples)[:, None] - self.cutout // 2
            place = torch.arange(side, device=samples.device)
            return (place >= first) & (place < first + self.cutout)

        rows, columns = (inside(*pair) for pair in zip(self.centre, self.side, strict=True))
        return images.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def _windows(
    images: Tensor, number: Tensor, top: Tensor, left: Tensor, side: tuple[int, int]
) -> Tensor:
    """Cut a window of `side` at (`top`, `left`) out of each image `number` of `images`
    [N, H, W, C].

    The view `every` has a window at each position in memory, so that cropping is a selection, which
    copies whole rows. Indexing in several dimensions works pixel by pixel and takes several times
    as long.
    """
    _, height, width, channels = images.shape
    size = (*side, channels)
    stride = (width * channels, channels, 1)
    reach = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    every = images.as_strided((images.numel() - reach, *size), (1, *stride))
    return every.index_select(0, ((number * height + top) * width + left) * channels)
