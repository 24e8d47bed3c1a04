"""SPADE as a task: what its networks are called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import PairedBatch, condition, normal
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.layers import initialize
from hpc_amp.gan.paired import Made, PairedGan, read_inputs
from hpc_amp.gan.paired_config import PairedLosses
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR
from hpc_amp.tasks.base import Networks
from hpc_amp.tasks.spade.config import SpadeConfig
from hpc_amp.tasks.spade.networks import SpadeGenerator


class Spade(PairedGan):
    """A generator whose normalisation layers see the label map, against patch discriminators."""

    train: SpadeConfig

    @property
    def paired_losses(self) -> PairedLosses:
        """Weights of the losses."""
        return self.train.spade.losses

    def loss_weights(self) -> Mapping[str, float]:
        """Those of pairs, and `kl` with a style encoder."""
        kl = self.train.spade.losses.kl if self.train.spade.style_encoder else 0.0
        return {**super().loss_weights(), "kl": kl}

    def build_networks(self) -> dict[str, nn.Module]:
        """The generator, with the style encoder in it, and the discriminator."""
        networks, images = self.train.spade, self.train.images
        discriminator = self.patch_discriminator(networks.discriminator, networks.spectral)
        initialize(discriminator)
        return {
            GENERATOR: SpadeGenerator(images.condition_channels, images.size, networks),
            DISCRIMINATOR: discriminator,
        }

    def make(self, batch: PairedBatch, shown: Tensor, networks: Networks, phase: str) -> Made:
        """Images in the style of the true ones, where there is a style encoder."""
        if not self.train.spade.style_encoder:
            return Made(networks[GENERATOR](shown)[0])
        noise = self._noise(batch, "style")
        return Made(*networks[GENERATOR](shown, noise, batch.images))

    def render(self, batch: PairedBatch, networks: Networks) -> Tensor:
        """Images in styles that are drawn, where there is a style encoder."""
        shown = condition(batch, self.train.images)
        noise = self._noise(batch, "style") if self.train.spade.style_encoder else None
        images: Tensor = networks[GENERATOR](shown, noise)[0]
        return images

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """An image from each label map, in the style of the images of `request`, or in drawn
        ones."""
        if not request.style:
            yield from super().generate(request, networks)
            return
        styled = read_images(request.style[:1], self.train.images, self.device)
        for files in request.batches():
            batch = read_inputs(files, request, self.train.images, self.device)
            shown = condition(batch, self.train.images)
            # The mean of the style: no noise.
            none = torch.zeros(len(files), self.train.spade.style, device=self.device)
            made = networks[GENERATOR](shown, none, styled.expand(len(files), -1, -1, -1))[0]
            yield from zip(files, made, strict=True)

    def _noise(self, batch: PairedBatch, purpose: str) -> Tensor:
        return normal(batch.seeds, (self.train.spade.style,), self.device, purpose)
