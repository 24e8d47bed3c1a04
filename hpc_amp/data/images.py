"""Labelled images in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Images:
    """Images with labels: `pixels` is uint8 [N, C, H, W], `labels` is int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Images:
        """The same images on `device`."""
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Training and test images of the same shape. `classes` is the number of classes, `name` the
    name of the set for reports."""

    name: str
    classes: int
    train: Images
    test: Images


@dataclass(frozen=True, slots=True)
class Normalization:
    """Mean and standard deviation of each channel, in units of uint8 pixel values (0 to 255)."""

    mean: Tensor
    std: Tensor

    @classmethod
    def imagenet(cls) -> Normalization:
        """The mean and standard deviation of ImageNet, which are usual for photographs."""
        return cls(
            torch.tensor([0.485, 0.456, 0.406]) * 255, torch.tensor([0.229, 0.224, 0.225]) * 255
        )

    @classmethod
    def measure(cls, pixels: Tensor) -> Normalization:
        """The mean and standard deviation of `pixels`, uint8 [N, C, H, W] on the CPU.

        They are computed from how often each of the 256 values occurs. That is exact, so every rank
        gets the same bits, whatever its number of threads.
        """
        counts = torch.zeros(pixels.shape[1], 256, dtype=torch.float64)
        for part in pixels.split(4096):
            for channel, count in enumerate(counts):
                count += torch.bincount(part[:, channel].flatten(), minlength=256)
        values = torch.arange(256, dtype=torch.float64)
        counts /= counts.sum(1, keepdim=True)
        mean = counts @ values
        variance = (counts * (values - mean[:, None]).square()).sum(1)
        return cls(mean.float(), variance.sqrt().clamp(min=1.0).float())

    def to(self, device: torch.device) -> Normalization:
        """The same numbers on `device`."""
        return Normalization(self.mean.to(device), self.std.to(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise `pixels`, uint8 [N, C, H, W], to float32 with mean 0 and deviation 1. Keeps
        their order in memory."""
        if not pixels.is_contiguous(memory_format=torch.channels_last):
            return pixels.float().sub_(self.mean[:, None, None]).div_(self.std[:, None, None])
        # The channels of a pixel are neighbours in memory. With whole rows of them, this takes a
        # quarter of the time on a CPU.
        width = pixels.shape[3]
        rows = pixels.permute(0, 2, 3, 1).flatten(2).float()
        rows.sub_(self.mean.repeat(width)).div_(self.std.repeat(width))
        images: Tensor = rows.unflatten(2, (width, -1)).permute(0, 3, 1, 2)
        return images

    def undo(self, images: Tensor) -> Tensor:
        """The images [N, C, H, W] before they were normalised, with values from 0 to 1."""
        pixels = images.float() * self.std[:, None, None] + self.mean[:, None, None]
        return (pixels / 255).clamp(0, 1)
