"""How close generated images are to given ones, image by image: L1, PSNR, SSIM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SSIM_WINDOW = 11
SSIM_DEVIATION = 1.5


def image_sums(made: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """Sums over a batch, float64 scalars: `l1`, `psnr`, `ssim`, and the number of `images`, of
    images [B, C, H, W] from -1 to 1 of one shape. Divide by `images` for the means.

    L1 is in units of the range from -1 to 1. PSNR (dB) and SSIM (Wang et al., 2004; a Gaussian
    window of 11 pixels, smaller where the image is) are for the range 0 to 1; PSNR ends at 100 dB.
    """
    with torch.autocast(made.device.type, enabled=False):
        made, wanted = made.double().clamp(-1, 1), wanted.double()
        difference = (made - wanted).flatten(1)
        error = (difference / 2).square().mean(1).clamp(min=1e-10)
        return {
            "l1": difference.abs().mean(1).sum(),
            "psnr": (-10 * error.log10()).sum(),
            "ssim": ssim(made / 2 + 0.5, wanted / 2 + 0.5).sum(),
            "images": torch.tensor(float(len(made)), dtype=torch.float64, device=made.device),
        }


def ssim(x: Tensor, y: Tensor) -> Tensor:
    """The structural similarity [B] of images [B, C, H, W] from 0 to 1."""
    size = min(SSIM_WINDOW, x.shape[2], x.shape[3])
    at = torch.arange(size, dtype=x.dtype, device=x.device) - (size - 1) / 2
    line = torch.exp(-at.square() / (2 * SSIM_DEVIATION**2))
    line = line / line.sum()
    window = line.outer(line).expand(x.shape[1], 1, size, size)

    def blur(images: Tensor) -> Tensor:
        return F.conv2d(images, window, groups=images.shape[1])

    mean_x, mean_y = blur(x), blur(y)
    variance_x = blur(x * x) - mean_x.square()
    variance_y = blur(y * y) - mean_y.square()
    covariance = blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    numerator = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    denominator = (mean_x.square() + mean_y.square() + c1) * (variance_x + variance_y + c2)
    return (numerator / denominator).flatten(1).mean(1)
