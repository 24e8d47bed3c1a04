"""Fixed feature networks: for the perceptual loss, and for distances between sets of images.

Inside a compute node nothing can be downloaded, so weights come from a local file, or from
`random`, a small network whose weights are random and always the same. What is measured with it
carries `random` in its name and is comparable with nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.losses import l1
from hpc_amp.models.weights import load_weights

_VGG_LAYERS = (1, 6, 11, 20, 29)
"""relu_1_1, relu_2_1, relu_3_1, relu_4_1 and relu_5_1 of torchvision's VGG-19."""
_VGG_WEIGHTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)


class RandomFeatures(nn.Module):
    """Images [B, 3, H, W] to four feature maps, by 3 x 3 convolutions of stride 2 with weights that
    are random and always the same."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(20190320)
        channels = [3, width, 2 * width, 4 * width, 4 * width]
        self.layers = nn.ModuleList()
        for inputs, outputs in itertools.pairwise(channels):
            conv = nn.Conv2d(inputs, outputs, 3, 2, padding=1, bias=False)
            with torch.no_grad():
                deviation = (2 / (inputs * 9)) ** 0.5
                conv.weight.copy_(torch.randn(conv.weight.shape, generator=stream) * deviation)
            self.layers.append(conv)
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The four maps."""
        maps = []
        for layer in self.layers:
            images = F.leaky_relu(layer(images), 0.2)
            maps.append(images)
        return maps


class VggFeatures(nn.Module):
    """Images [B, 3, H, W] from -1 to 1 to the five feature maps of VGG-19 (Simonyan & Zisserman,
    2015) that perceptual losses use. `file` has a state dict of torchvision's `vgg19`; raises
    ModelError where it cannot be read."""

    mean: Tensor
    std: Tensor

    def __init__(self, file: Path) -> None:
        super().__init__()
        import torchvision

        with torch.device("meta"):  # it would draw 140 million weights
            vgg = torchvision.models.vgg19()
        vgg.to_empty(device="cpu")
        load_weights(vgg, str(file), "vgg19")
        self.layers = vgg.features[: _VGG_LAYERS[-1] + 1]
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The five maps."""
        images = (images / 2 + 0.5 - self.mean) / self.std
        maps = []
        for number, layer in enumerate(self.layers):
            # Not in place: the map before is one of those that count.
            images = F.relu(images) if isinstance(layer, nn.ReLU) else layer(images)
            if number in _VGG_LAYERS:
                maps.append(images)
        return maps


class PerceptualLoss(nn.Module):
    """The weighted L1 distance of feature maps (Johnson et al., 2016; weights of pix2pixHD).

    `network` maps images [B, 3, H, W] from -1 to 1 to a list of feature maps. Not a part of any
    network that is trained: it is neither in checkpoints nor in DDP. It runs under the caller's
    autocast; distances are fp32.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)

    def forward(self, fake: Tensor, real: Tensor) -> Tensor:
        """The distance, a scalar. Real images get no gradient."""
        with torch.no_grad():
            wanted: Sequence[Tensor] = self.network(real)
        found: Sequence[Tensor] = self.network(fake)
        weights = _VGG_WEIGHTS[-len(found) :]
        parts = [weight * l1(a, b) for weight, a, b in zip(weights, found, wanted, strict=True)]
        return torch.stack(parts).sum()


def feature_network(weights: str | None) -> nn.Module:
    """VGG-19 with the weights of a file, or, for None, `RandomFeatures`. Raises ModelError."""
    return RandomFeatures() if weights is None else VggFeatures(Path(weights))
