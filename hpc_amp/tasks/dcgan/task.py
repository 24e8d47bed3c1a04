"""The DCGAN task: the training of a generator and a discriminator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.config.schema import Optimizer
from hpc_amp.data.prepare import PreparedData
from hpc_amp.gan.collapse import CollapseWatch
from hpc_amp.gan.distance import SetDistances
from hpc_amp.tasks.base import Best, Losses, Networks, Phase, Task, TrainingData
from hpc_amp.tasks.dcgan.config import DcganConfig
from hpc_amp.tasks.dcgan.data import (
    Batch,
    GanTraining,
    evaluation_latents,
    fixed_latents,
    prepare_unlabelled,
    signed_images,
)
from hpc_amp.tasks.dcgan.networks import Discriminator, Generator

REAL, MADE = "real", "made"
_SHOWN = 16
"""The number of inputs in a picture."""


class Dcgan(Task):
    """Two networks, two optimizers, three losses.

    The discriminator has a loss for real images and one for generated images. The generator has a
    loss for generated images that the discriminator recognises. All are binary cross entropies of
    logits. A batch is images [B, C, S, S] and latent vectors [B, latent]. Both phases of a step
    generate images from the same latent vectors.
    """

    name: ClassVar[str] = "dcgan"
    best: ClassVar[Best] = Best("frechet_random", "lowest")
    train: DcganConfig
    data: PreparedData
    judged: dict[str, Tensor]
    """For each loss of the newest batch, by name, what the discriminator judged of its images: the
    mean probability that they are real. `examples/dcgan` prints it."""

    def prepare_data(self) -> TrainingData:
        """Find, download or generate the images."""
        self.data = prepare_unlabelled(self.train, self.world, self.device)
        self.data_name = self.data.name
        self.synthetic = self.data.synthetic
        self.normalization = self.data.training.normalization
        self.judged = {}
        size = (self.train.gan.image_size, self.train.gan.image_size)
        self._distances = SetDistances(
            ("images",),
            self.world,
            self.device,
            self.data.channels,
            fid=self.train.evaluation.fid,
            size=size,
        )
        chance = math.log(2)
        self._watch = CollapseWatch({"d_real": chance, "d_fake": chance}, ("g",))
        return GanTraining(self.data.training, self.normalization, self.train, self.world)

    def build_networks(self) -> dict[str, nn.Module]:
        """Both networks, for the number of channels of the data."""
        gan, channels = self.train.gan, self.data.channels
        return {
            "generator": Generator(
                latent=gan.latent,
                channels=channels,
                width=gan.generator_width,
                image_size=gan.image_size,
                norm=gan.norm,
            ),
            "discriminator": Discriminator(
                channels=channels,
                width=gan.discriminator_width,
                image_size=gan.image_size,
                norm=gan.norm,
            ),
        }

    def first_weights(self) -> dict[str, str]:
        """The weights of each network for which the job names a file."""
        gan = self.train.gan
        files = {"generator": gan.generator_weights, "discriminator": gan.discriminator_weights}
        return {name: file for name, file in files.items() if file is not None}

    def phases(self) -> tuple[Phase, ...]:
        """The update of the discriminator, then that of the generator, both with Adam."""
        gan = self.train.gan
        # AdamW without weight decay is Adam.
        adam = Optimizer(name="adamw", lr=gan.lr, betas=gan.betas, eps=gan.eps, weight_decay=0.0)
        return (
            Phase("discriminator", ("discriminator",), ("d_real", "d_fake"), adam),
            Phase("generator", ("generator",), ("g",), adam),
        )

    def losses(self, phase: str, batch: Batch, networks: Networks) -> Iterator[Losses]:
        """`d_real` and `d_fake`, or `g`, the generator's loss in its form that does not saturate
        (Goodfellow et al., 2014, section 3)."""
        images, latents = batch
        generator, discriminator = networks["generator"], networks["discriminator"]
        if phase == "discriminator":
            with torch.no_grad():
                made = generator(latents)
            yield self._loss("d_real", discriminator(images), 1.0)
            yield self._loss("d_fake", discriminator(made), 0.0)
        else:
            yield self._loss("g", discriminator(generator(latents)), 1.0)

    def forward_pass(self, batch: Batch, networks: Networks) -> bool:
        """Generate images from the latent vectors."""
        networks["generator"](batch[1])
        return True

    def input_pictures(self, batch: Batch) -> Tensor | None:
        """The first images."""
        return batch[0][:_SHOWN].float().cpu().div(2).add(0.5).clamp(0, 1)

    def evaluation_batches(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's share of the test images, then of the latent vectors of generated images."""
        self._distances.begin()
        for images, _ in self.data.evaluation():
            yield REAL, signed_images(images, self.normalization, self.train)
        for latents in evaluation_latents(self.train, self.world, self.device):
            yield MADE, latents

    def evaluate(self, batch: tuple[str, Tensor], networks: Networks) -> dict[str, Tensor]:
        """The number of images by kind. The moments of their features are kept here until
        `summarize`, because they are not scalars."""
        kind, images = batch
        if kind == MADE:
            self._distances.add_made("images", networks["generator"](images))
        else:
            self._distances.add_real("images", images)
        return {name: torch.tensor(len(images) * (name == kind)) for name in (REAL, MADE)}

    def pictures(self, networks: Networks) -> Tensor:
        """Images generated from the same latent vectors in every evaluation."""
        latents = fixed_latents(self.train, "pictures", self.train.gan.pictures)
        images: Tensor = networks["generator"](latents.to(self.device))
        return images.float().cpu() / 2 + 0.5

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """`frechet_random`, the distance of the generated images from the test images, as measured
        in `hpc_amp.gan.frechet`, and FID and KID, if they are wanted. A collective call."""
        return self._distances.distances()

    def concerns(self, step: int, losses: Mapping[str, float]) -> Mapping[str, str]:
        """Signs of a collapse (`hpc_amp.gan.collapse`)."""
        if losses:
            return self._watch.report(step, losses)
        return self._watch.evaluation(step, self._distances.spreads())

    def protocol(self) -> dict[str, Any]:
        """Of FID and KID."""
        return self._distances.protocol()

    def _loss(self, name: str, logits: Tensor, label: float) -> Losses:
        """The mean binary cross entropy of `logits` [B] in fp32. `label` is that of all images: 1
        for real, 0 for generated."""
        logits = logits.float()
        self.judged[name] = logits.detach().sigmoid().mean()
        labels = torch.full_like(logits, label)
        return {name: F.binary_cross_entropy_with_logits(logits, labels)}
