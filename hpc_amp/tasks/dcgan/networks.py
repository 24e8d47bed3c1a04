"""The two networks of DCGAN (Radford, Metz & Chintala, 2016), for square images whose side is a
power of two of at least 16 pixels.

The layers are in one sequence, `main`, in the order of PyTorch's DCGAN example, so weights trained
with that example or with apex's can be loaded. The discriminator returns logits. The sigmoid
belongs to the loss, where it is safe under autocast.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hpc_amp.models.resnet import group_norm

Norm = Callable[[int], nn.Module]
SMALLEST = 4
"""The side of the smallest feature map in pixels."""


class Generator(nn.Module):
    """Maps latent vectors [N, latent] to images [N, channels, image_size, image_size] with values
    from -1 to 1.

    `width`: the number of channels before the last layer. Each earlier layer has twice as many.
    `norm`: `batch` or `group`.
    """

    def __init__(
        self, *, latent: int, channels: int, width: int, image_size: int, norm: str = "batch"
    ) -> None:
        super().__init__()
        new_norm = _norm(norm)
        features = width << _doublings(image_size)
        layers: list[nn.Module] = [
            nn.ConvTranspose2d(latent, features, SMALLEST, bias=False),
            new_norm(features),
            nn.ReLU(inplace=True),
        ]
        while features > width:
            layers += [
                nn.ConvTranspose2d(features, features // 2, 4, stride=2, padding=1, bias=False),
                new_norm(features // 2),
                nn.ReLU(inplace=True),
            ]
            features //= 2
        layers += [
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False),
            nn.Tanh(),
        ]
        self.main = nn.Sequential(*layers)
        self.apply(_initialise)

    def forward(self, latents: Tensor) -> Tensor:
        images: Tensor = self.main(latents[:, :, None, None])
        return images


class Discriminator(nn.Module):
    """Maps images [N, channels, image_size, image_size] to logits [N], which are above 0 for images
    that look real.

    `width`: the number of channels after the first layer. Each further layer has twice as many.
    `norm`: `batch` or `group`.
    """

    def __init__(self, *, channels: int, width: int, image_size: int, norm: str = "batch") -> None:
        super().__init__()
        new_norm = _norm(norm)
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        features = width
        for _ in range(_doublings(image_size)):
            layers += [
                nn.Conv2d(features, features * 2, 4, stride=2, padding=1, bias=False),
                new_norm(features * 2),
                nn.LeakyReLU(0.2, inplace=True),
            ]
            features *= 2
        layers.append(nn.Conv2d(features, 1, SMALLEST, bias=False))
        self.main = nn.Sequential(*layers)
        self.apply(_initialise)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.main(images)
        return logits.flatten()


def _doublings(image_size: int) -> int:
    """How often the number of channels doubles from `width` to the smallest feature map."""
    return (image_size // (2 * SMALLEST)).bit_length() - 1


def _norm(name: str) -> Norm:
    return group_norm if name == "group" else nn.BatchNorm2d


def _initialise(layer: nn.Module) -> None:
    """Draw weights from N(0, 0.02), and those of norms from N(1, 0.02), as in the paper."""
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(layer.weight, 0.0, 0.02)
    elif isinstance(layer, (nn.BatchNorm2d, nn.GroupNorm)):
        nn.init.normal_(layer.weight, 1.0, 0.02)
        nn.init.zeros_(layer.bias)
