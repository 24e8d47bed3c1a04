"""The task of a translation between two domains without pairs: what UNIT and MUNIT share.

Besides the distances of translations to the images of their domain, an evaluation of a synthetic
set measures the error of each translation, since it is known what a content looks like in the other
domain.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.batches import UnpairedBatch, part_of
from hpc_amp.gan.data.training import Prepared, prepare_unpaired
from hpc_amp.gan.distance import SetDistances
from hpc_amp.gan.features import PerceptualLoss, feature_network
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.losses import discriminator_loss, generator_loss, l1
from hpc_amp.gan.norms import InstanceNorm
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR, ConditionalGan
from hpc_amp.gan.translation import Direction, DomainDiscriminators, Translator
from hpc_amp.gan.unpaired_config import Translation, UnpairedTrain
from hpc_amp.tasks.base import Losses, Networks, TrainingData

DIRECTIONS: tuple[Direction, ...] = ("a2b", "b2a")


class UnpairedGan(ConditionalGan):
    """Base class of the models. A batch is an `UnpairedBatch`."""

    styled: ClassVar[bool] = False
    """Whether an image has several translations, which differ in style."""
    judged_sets: ClassVar[int] = 2
    train: UnpairedTrain
    prepared: Prepared[UnpairedBatch]
    distances: SetDistances

    @property
    @abstractmethod
    def model(self) -> Translation:
        """The networks, and the weights of the losses."""

    @abstractmethod
    def build_generator(self) -> Translator:
        """The generator."""

    @abstractmethod
    def swapped(self, batch: UnpairedBatch, generator: Translator) -> Mapping[str, Tensor]:
        """Translations of a training batch, for the discriminator to judge: `a_in_b`, `b_in_a`."""

    @abstractmethod
    def computed(self, batch: UnpairedBatch, generator: nn.Module) -> Mapping[str, Tensor]:
        """What the generator's losses need, in one forward pass; `a_in_b` and `b_in_a` as
        `swapped`, and `a_again` and `b_again`, what its own autoencoder makes of an image."""

    @abstractmethod
    def own_losses(self, batch: UnpairedBatch, made: Mapping[str, Tensor]) -> Losses:
        """The losses that the model adds to `gan`, `image_recon` and `perceptual`; those without a
        weight may be left out."""

    @abstractmethod
    def translations(
        self, generator: Translator, images: Tensor, direction: Direction, seeds: Tensor
    ) -> Tensor:
        """Translations of evaluation images, each in one style or several: [B, K, 3, H, W]."""

    # ---- training --------------------------------------------------------------------------------

    def prepare_data(self) -> TrainingData:
        """Find, read or draw the images."""
        self.prepared = prepare_unpaired(self.train.images, self.train, self.world, self.device)
        self.data_name, self.synthetic = self.prepared.name, self.prepared.synthetic
        size, evaluation = self.train.images.size, self.train.evaluation
        self.distances = SetDistances(
            ("a", "b"), self.world, self.device, fid=evaluation.fid, size=size
        )
        self.perceptual: PerceptualLoss | None = None
        if self.model.perceptual:
            features = feature_network(self.model.perceptual_weights)
            self.perceptual = PerceptualLoss(_ContentFeatures(features)).to(self.device)
        self._shown: UnpairedBatch | None = None
        return self.prepared.training

    def build_networks(self) -> dict[str, nn.Module]:
        """Generator and discriminator, each for both domains."""
        return {GENERATOR: self.build_generator(), DISCRIMINATOR: DomainDiscriminators(self.model)}

    def discriminator_losses(self, batch: UnpairedBatch, networks: Networks) -> Losses:
        """`d`, and `r1` where it counts; sums over both domains."""
        with torch.no_grad():
            made = self.swapped(batch, networks[GENERATOR])  # type: ignore[arg-type]
        penalize = self.train.adversarial.r1 > 0
        judged = networks[DISCRIMINATOR](
            batch.a, batch.b, made["b_in_a"], made["a_in_b"], penalize=penalize
        )
        kind = self.train.adversarial.loss
        losses = {
            "d": discriminator_loss(judged["a"], judged["fake_a"], kind)
            + discriminator_loss(judged["b"], judged["fake_b"], kind)
        }
        if penalize:
            losses["r1"] = judged["r1"]
        return losses

    def generator_losses(self, batch: UnpairedBatch, networks: Networks) -> Losses:
        """Those of `generator_names`."""
        made = self.computed(batch, networks[GENERATOR])
        judged = networks[DISCRIMINATOR](made["b_in_a"], made["a_in_b"])
        kind = self.train.adversarial.loss
        losses = {
            "gan": generator_loss(judged["a"], kind) + generator_loss(judged["b"], kind),
            "image_recon": l1(made["a_again"], batch.a) + l1(made["b_again"], batch.b),
            **self.own_losses(batch, made),
        }
        if self.perceptual is not None:
            there, back = (made["a_in_b"], batch.a), (made["b_in_a"], batch.b)
            losses["perceptual"] = self.perceptual(*there) + self.perceptual(*back)
        return {name: losses[name] for name in self.generator_names()}

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """The translation of each image, in the direction of `request`. A model with styles uses
        the style of the first style image. Without style images, each file gets a random style."""
        generator: Translator = networks[GENERATOR]  # type: ignore[assignment]
        direction = next((each for each in DIRECTIONS if each == request.direction), None)
        if direction is None:
            raise DataError("a translation needs a direction: a2b or b2a")
        example = None
        if request.style:
            example = read_images(request.style[:1], self.train.images, self.device)
        for files in request.batches():
            images = read_images(files, self.train.images, self.device)
            style = example
            if style is None and self.styled:
                style = request.seeds(files)
            yield from zip(files, generator.translate(images, direction, style), strict=True)

    # ---- evaluation ------------------------------------------------------------------------------

    def evaluation_batches(self) -> Iterator[UnpairedBatch]:
        """This rank's share of the evaluation images."""
        self.distances.begin()
        yield from self.prepared.evaluation()

    def evaluate(self, batch: UnpairedBatch, networks: Networks) -> dict[str, Tensor]:
        """The numbers of translations, such as `images_b`, and sums of what `measure` says of
        them. Each image counts once."""
        sums = {}
        assert batch.first is not None
        first = dict(zip("ab", batch.first.unbind(1), strict=True))
        for direction in DIRECTIONS:
            _, real, truth = sides(batch, direction)
            source, domain = direction[0], direction[-1]
            made = self._translated(batch, direction, networks).float()
            self.distances.add_real(domain, real[first[domain]])
            self.distances.add_made(domain, made[first[source]].flatten(0, 1))
            sums[f"images_{domain}"] = first[source].sum()
            for name, values in self.measure(made, truth).items():
                sums[f"{name}_{domain}"] = values[first[source]].sum()
        return sums

    def measure(self, made: Tensor, truth: Tensor | None) -> dict[str, Tensor]:
        """Numbers for each of the translations `made`, [B, K, 3, H, W], by name: [B] each. `truth`
        are the correct translations of a synthetic set, [B, S, 3, H, W]."""
        return {} if truth is None else {"truth_l1": errors(made, truth).min(2).values.mean(1)}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The distances of translations to the images of their domain, such as `frechet_random_a`
        and `frechet_random_b`, and their means, such as `frechet_random`; on a synthetic set the
        mean errors `truth_l1_a` and `truth_l1_b`. A collective call."""
        images = {domain: sums.pop(f"images_{domain}") for domain in "ab"}
        means = {name: total / images[name[-1]] for name, total in sums.items()}
        return {**self.distances.distances(), **means}

    def protocol(self) -> dict[str, Any]:
        """Of FID and KID."""
        return self.distances.protocol()

    def spreads(self) -> Mapping[str, float]:
        """Those of the sets of `summarize`."""
        return self.distances.spreads()

    def shown(self) -> UnpairedBatch:
        """The samples of pictures: the first ones of the evaluation, at most
        `evaluation.pictures`."""
        if self._shown is None:
            first = next(self.prepared.evaluation())
            self._shown = part_of(first, slice(self.train.evaluation.pictures))
        return self._shown

    def picture_rows(self, networks: Networks) -> Tensor:
        """For each sample: an image of A, its correct translations where they are known, and its
        translations; and the same for an image of B. Where the weights are averaged, a translation
        by the weights themselves comes before those by the average."""
        batch = self.shown()
        columns = []
        for direction in DIRECTIONS:
            images, _, truth = sides(batch, direction)
            make = partial(self._translated, batch, direction)
            *live, made = self.outputs(make, networks)
            columns += [images[:, None], *([] if truth is None else [truth])]
            columns += [*(part[:, :1] for part in live), made]
        return torch.cat([part.float() for part in columns], 1)

    def _translated(self, batch: UnpairedBatch, direction: Direction, networks: Networks) -> Tensor:
        """The translations of an evaluation batch: [B, K, 3, H, W]."""
        generator: Translator = networks[GENERATOR]  # type: ignore[assignment]
        return self.translations(generator, sides(batch, direction)[0], direction, batch.seeds)


def sides(batch: UnpairedBatch, direction: Direction) -> tuple[Tensor, Tensor, Tensor | None]:
    """The images that are translated, real images of the other domain, and the correct
    translations where they are known."""
    if direction == "a2b":
        return batch.a, batch.b, batch.a_in_b
    return batch.b, batch.a, batch.b_in_a


def errors(made: Tensor, truth: Tensor) -> Tensor:
    """The mean absolute difference of each translation [B, K, 3, H, W] to each correct one,
    [B, S, 3, H, W]: float64 [B, K, S], from 0 to 2 for images from -1 to 1."""
    with torch.autocast(made.device.type, enabled=False):
        differences = made.double()[:, :, None] - truth.double()[:, None]
        return differences.abs().flatten(3).mean(3)


class _ContentFeatures(nn.Module):
    """Feature maps whose channels have mean 0 and variance 1 in each image: colour and contrast do
    not count."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.norm = InstanceNorm()

    def forward(self, images: Tensor) -> list[Tensor]:
        """The maps of the network, normalised."""
        return [self.norm(features) for features in self.network(images)]
