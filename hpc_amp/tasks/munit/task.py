"""MUNIT (Huang et al., 2018): translation between two domains, in any of many styles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.data.batches import UnpairedBatch, normal
from hpc_amp.gan.frechet import FeatureNetwork
from hpc_amp.gan.losses import l1
from hpc_amp.gan.lpips import Lpips
from hpc_amp.gan.translation import Direction, Translator
from hpc_amp.gan.unpaired import UnpairedGan, errors
from hpc_amp.tasks.base import Losses, TrainingData
from hpc_amp.tasks.munit.config import MunitConfig, MunitNetworks
from hpc_amp.tasks.munit.networks import MunitGenerator


class Munit(UnpairedGan):
    """Losses of the generator, each a sum over both domains: `gan`, `image_recon`, `style_recon`,
    `content_recon`, `cycle` and `perceptual`."""

    name: ClassVar[str] = "munit"
    styled: ClassVar[bool] = True
    train: MunitConfig

    @property
    def model(self) -> MunitNetworks:
        """`train.munit`."""
        return self.train.munit

    def prepare_data(self) -> TrainingData:
        """Find, read or draw the images."""
        self._features = FeatureNetwork(3).to(self.device)
        self._lpips: Lpips | None = None
        if self.train.evaluation.lpips.weights is not None:
            size = self.train.images.size
            self._lpips = Lpips(self.train.evaluation.lpips, size, self.device)
        return super().prepare_data()

    def build_generator(self) -> Translator:
        """Two encoders and a decoder for each domain."""
        return MunitGenerator(self.model)

    def loss_weights(self) -> Mapping[str, float]:
        """By the name of the loss."""
        model = self.model
        return {
            "gan": model.gan,
            "image_recon": model.image_recon,
            "style_recon": model.style_recon,
            "content_recon": model.content_recon,
            "cycle": model.cycle,
            "perceptual": model.perceptual,
        }

    def swapped(self, batch: UnpairedBatch, generator: MunitGenerator) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Translations in random styles."""
        return generator.swap(batch.a, batch.b, self._code(batch, "a"), self._code(batch, "b"))

    def computed(self, batch: UnpairedBatch, generator: nn.Module) -> Mapping[str, Tensor]:
        """Everything. Both phases of a step have the same random styles."""
        codes = {f"code_{domain}": self._code(batch, domain) for domain in "ab"}
        made: dict[str, Tensor] = generator(
            "all", batch.a, batch.b, codes["code_a"], codes["code_b"], self.model.cycle > 0
        )
        return made | codes

    def own_losses(self, batch: UnpairedBatch, made: Mapping[str, Tensor]) -> Losses:
        """`style_recon`, `content_recon`, and `cycle` where it counts."""
        losses = {
            "style_recon": l1(made["style_ba"], made["code_a"])
            + l1(made["style_ab"], made["code_b"]),
            "content_recon": l1(made["content_ab"], made["content_a"])
            + l1(made["content_ba"], made["content_b"]),
        }
        if self.model.cycle:
            losses["cycle"] = l1(made["a_back"], batch.a) + l1(made["b_back"], batch.b)
        return losses

    def translations(  # type: ignore[override]
        self, generator: MunitGenerator, images: Tensor, direction: Direction, seeds: Tensor
    ) -> Tensor:
        """Each image in `evaluation.styles` styles, which are random and always the same."""
        shape = (self.train.evaluation.styles, self.model.style)
        codes = normal(seeds, shape, self.device, f"evaluation {direction}")
        return generator.translate_each(images, direction, codes)

    def measure(self, made: Tensor, truth: Tensor | None) -> dict[str, Tensor]:
        """Also `diversity`: the mean distance between the features of two translations of one
        image; `lpips_diversity`, their mean LPIPS, if it is wanted; and, of a synthetic set with
        several styles, how many of them the translations of an image have (`styles`)."""
        numbers = super().measure(made, truth)
        numbers["diversity"] = self._diversity(made)
        if self._lpips is not None:
            pairs = itertools.combinations(made.unbind(1), 2)
            distances = torch.stack([self._lpips(one, other) for one, other in pairs])
            numbers["lpips_diversity"] = distances.mean(0)
        if truth is not None and truth.shape[1] > 1:
            nearest = errors(made, truth).argmin(2)
            found = F.one_hot(nearest, truth.shape[1]).amax(1)
            numbers["styles"] = found.sum(1)
            numbers["true_diversity"] = self._diversity(truth)
        return numbers

    def protocol(self) -> dict[str, Any]:
        """Of FID, KID and LPIPS."""
        own = {} if self._lpips is None else {"lpips": self._lpips.protocol}
        return {**super().protocol(), **own}

    def _diversity(self, images: Tensor) -> Tensor:
        """The mean distance of features between pairs of [B, K, 3, H, W]: float64 [B]."""
        features = self._features(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        pairs = itertools.combinations(range(images.shape[1]), 2)
        distances = [(features[:, i] - features[:, j]).norm(dim=1) for i, j in pairs]
        return torch.stack(distances).mean(0)

    def _code(self, batch: UnpairedBatch, domain: str) -> Tensor:
        """Random style codes of a training batch."""
        return normal(batch.seeds, (self.model.style,), self.device, f"munit {domain}")
