"""UNIT (Liu, Breuel & Kautz, 2017): translation between two domains through a shared latent
space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import UnpairedBatch, normal
from hpc_amp.gan.losses import kl_loss, l1
from hpc_amp.gan.translation import Direction, Translator
from hpc_amp.gan.unpaired import UnpairedGan
from hpc_amp.tasks.base import Losses
from hpc_amp.tasks.unit.config import UnitConfig, UnitNetworks
from hpc_amp.tasks.unit.networks import UnitGenerator


class Unit(UnpairedGan):
    """Losses of the generator, each a sum over both domains: `gan`, `image_recon`, `cycle`, `kl`,
    `kl_cycle` and `perceptual`."""

    name: ClassVar[str] = "unit"
    train: UnitConfig

    @property
    def model(self) -> UnitNetworks:
        """`train.unit`."""
        return self.train.unit

    def build_generator(self) -> Translator:
        """Two autoencoders."""
        return UnitGenerator(self.model)

    def loss_weights(self) -> Mapping[str, float]:
        """By the name of the loss."""
        model = self.model
        return {
            "gan": model.gan,
            "image_recon": model.image_recon,
            "cycle": model.cycle,
            "kl": model.kl,
            "kl_cycle": model.kl_cycle,
            "perceptual": model.perceptual,
        }

    def swapped(self, batch: UnpairedBatch, generator: UnitGenerator) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Translations by latent vectors with noise."""
        return generator.swap(batch.a, batch.b, self._noise(batch, "a", "b"))

    def computed(self, batch: UnpairedBatch, generator: nn.Module) -> Mapping[str, Tensor]:
        """Everything."""
        noise = self._noise(batch, "a", "b", "ab", "ba")
        made: Mapping[str, Tensor] = generator("all", batch.a, batch.b, noise)
        return made

    def own_losses(self, batch: UnpairedBatch, made: Mapping[str, Tensor]) -> Losses:
        """`cycle`, `kl` and `kl_cycle`."""
        return {
            "cycle": l1(made["a_back"], batch.a) + l1(made["b_back"], batch.b),
            "kl": divergence(made["mean_a"]) + divergence(made["mean_b"]),
            "kl_cycle": divergence(made["mean_ab"]) + divergence(made["mean_ba"]),
        }

    def translations(
        self, generator: Translator, images: Tensor, direction: Direction, seeds: Tensor
    ) -> Tensor:
        """The one translation of each image."""
        return generator.translate(images, direction)[:, None]

    def _noise(self, batch: UnpairedBatch, *names: str) -> dict[str, Tensor]:
        """Normal numbers for latent vectors; those for `a` and `b` are the same in both phases."""
        height, width = batch.a.shape[2:]
        scale = 2**self.model.downs
        shape = (self.model.width * scale, height // scale, width // scale)
        return {name: normal(batch.seeds, shape, self.device, f"unit {name}") for name in names}


def divergence(mean: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of N(mean, 1) from N(0, 1), averaged over the latent numbers
    and the batch, [B, C, H, W]: a scalar in fp32."""
    flat = mean.flatten(1)
    return kl_loss(flat, torch.zeros_like(flat)) / flat.shape[1]
