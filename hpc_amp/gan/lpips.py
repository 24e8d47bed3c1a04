"""LPIPS (Zhang et al., 2018): how different two images look to people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpc_amp.gan.config import PerceptualDistance
from hpc_amp.gan.fid import full_precision, torchmetrics
from hpc_amp.models.weights import one_line, read_weights, sha256_of
from hpc_amp.tasks.base import ModelError


class Lpips:
    """LPIPS of pairs of images. The network is torchvision's, with the weights of a file; its
    layers are weighted by the numbers that come with torchmetrics. fp32, never under autocast or
    in TF32."""

    def __init__(
        self, config: PerceptualDistance, size: tuple[int, int], device: torch.device
    ) -> None:
        """`size`: height and width of the images. Raises ModelError."""
        version = torchmetrics("train.evaluation.lpips")
        from torchmetrics.functional.image import lpips

        assert config.weights is not None
        # torchmetrics' own way to make the network downloads its weights. This one would draw them,
        # up to 140 million.
        with torch.device("meta"):
            network = lpips._LPIPS(pretrained=False, pnet_rand=True, net=config.network)
        network.to_empty(device="cpu")
        network.scaling_layer = lpips.ScalingLayer()  # its numbers are in no file
        weights = read_weights(config.weights, config.network)
        # `slice1.0.weight` and `slices.0.0.weight` are torchvision's `features.0.weight`.
        names = {
            name: re.sub(r"^slices?\.?\d\.", "features.", name) for name in network.net.state_dict()
        }
        try:
            network.net.load_state_dict({name: weights[theirs] for name, theirs in names.items()})
        except (KeyError, RuntimeError) as error:
            raise ModelError(
                f"the weights in {config.weights} are not those of torchvision's {config.network}: "
                f"{one_line(error)}"
            ) from error
        layers = Path(lpips.__file__).parent / "lpips_models" / f"{config.network}.pth"
        network.load_state_dict(read_weights(str(layers), config.network), strict=False)
        self._network = network.to(device).eval().requires_grad_(False)
        self._check_size(config.network, size, device)
        self.protocol: dict[str, Any] = {
            "network": config.network,
            "weights": config.weights,
            "weights_sha256": sha256_of(config.weights),
            "layers_sha256": sha256_of(str(layers)),
            "size": list(size),
            "torch": torch.__version__,
            "torchmetrics": version,
        }

    def _check_size(self, name: str, size: tuple[int, int], device: torch.device) -> None:
        blank = torch.zeros(1, 3, *size, device=device)
        try:
            self(blank, blank)
        except RuntimeError as error:
            raise ModelError(
                f"train.evaluation.lpips: images of {size[0]} x {size[1]} pixels are too small for "
                f"{name}"
            ) from error

    @torch.no_grad()
    def __call__(self, images: Tensor, others: Tensor) -> Tensor:
        """The distance of each of `images` [B, 3, H, W] from -1 to 1 to the one of `others`:
        float64 [B]."""
        with full_precision(images.device):
            found: Tensor = self._network(images.float().clamp(-1, 1), others.float().clamp(-1, 1))
        return found.flatten().double()
