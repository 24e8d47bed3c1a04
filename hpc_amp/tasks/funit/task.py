"""FUNIT (Liu et al., 2019): translation of images into a class that a few images show, also one
that the training has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import ClassBatch, part_of
from hpc_amp.gan.data.training import Prepared, prepare_classes
from hpc_amp.gan.discriminators import ProjectionDiscriminator
from hpc_amp.gan.distance import SetDistances
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.layers import initialize
from hpc_amp.gan.losses import discriminator_loss, generator_loss, l1
from hpc_amp.gan.penalties import r1_penalty
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR, ConditionalGan
from hpc_amp.tasks.base import Losses, Networks, TrainingData
from hpc_amp.tasks.funit.config import FunitConfig, FunitNetworks
from hpc_amp.tasks.funit.metrics import NearestClass
from hpc_amp.tasks.funit.networks import Generator, StyleEncoder


class Funit(ConditionalGan):
    """A generator that gets a content image and references, and a discriminator that judges whether
    an image is a real one of a given class."""

    name: ClassVar[str] = "funit"
    train: FunitConfig
    data: Prepared[ClassBatch]

    @property
    def config(self) -> FunitNetworks:
        """The networks, and the weights of losses."""
        return self.train.funit

    def prepare_data(self) -> TrainingData:
        """Find or draw the images."""
        self.data = prepare_classes(self.train.images, self.train, self.world, self.device)
        self.data_name = self.data.name
        self.synthetic = self.data.synthetic
        unseen = self.data.unseen
        size, evaluation = self.train.images.size, self.train.evaluation
        self._distances = SetDistances(
            unseen, self.world, self.device, fid=evaluation.fid, size=size
        )
        self._nearest = NearestClass(len(unseen), self.world, self.device)
        self._shown: dict[int, ClassBatch] = {}
        return self.data.training

    def style_network(self) -> StyleEncoder:
        """What computes style codes from content images and references."""
        return StyleEncoder(self.config)

    def build_networks(self) -> dict[str, nn.Module]:
        """Generator and discriminator."""
        config = self.config
        discriminator = ProjectionDiscriminator(
            3,
            len(self.data.classes),
            width=config.discriminator_width,
            stages=config.discriminator_halvings,
            most=16 * config.discriminator_width,
            spectral=config.spectral,
        )
        initialize(discriminator, "kaiming")
        return {**self.generation_networks(), DISCRIMINATOR: discriminator}

    def generation_networks(self) -> dict[str, nn.Module]:
        """The generator. It does not depend on the classes of the data."""
        generator = Generator(self.config, self.style_network())
        initialize(generator, "kaiming")
        return {GENERATOR: generator}

    def loss_weights(self) -> Mapping[str, float]:
        """The generator's losses by name, and their weights."""
        config = self.config
        return {
            "gan": config.gan_weight,
            "features": config.features_weight,
            "reconstruction": config.reconstruction_weight,
        }

    def discriminator_losses(self, batch: ClassBatch, networks: Networks) -> Losses:
        """`d`: first references against translated images, both as images of the references' class.
        `r1`: the penalty at the references."""
        discriminator = networks[DISCRIMINATOR]
        real, classes = batch.style[:, 0], batch.style_class
        with torch.no_grad():
            fake = translated(batch, networks)
        both = torch.cat([real, fake.to(real.dtype)])
        logits, _ = discriminator(both, torch.cat([classes, classes]))
        on_real, on_fake = logits.chunk(2)
        losses = {"d": discriminator_loss([on_real], [on_fake], self.train.adversarial.loss)}
        if self.train.adversarial.r1:
            losses["r1"] = r1_penalty(lambda images: discriminator(images, classes)[:1], real)
        return losses

    def generator_losses(self, batch: ClassBatch, networks: Networks) -> Losses:
        """`gan`: the discriminator's opinion of the translation as an image of the references'
        class, and of the reconstruction as one of the content's class. `features`: the L1 distance
        of the translation's features from the mean of those of the references. `reconstruction`:
        the L1 distance of the reconstruction from the content image."""
        discriminator, weights = networks[DISCRIMINATOR], self.loss_weights()
        made = networks[GENERATOR](batch.content, batch.style)
        losses = {"reconstruction": l1(made["reconstruction"], batch.content)}
        images = torch.cat([made["translation"], made["reconstruction"]])
        logits, features = discriminator(
            images, torch.cat([batch.style_class, batch.content_class])
        )
        # Each is half of the mean over both.
        losses["gan"] = generator_loss(logits.chunk(2), self.train.adversarial.loss)
        if weights["features"]:
            references = batch.style.shape[1]
            with torch.no_grad():
                _, wanted = discriminator(
                    batch.style.flatten(0, 1), batch.style_class.repeat_interleave(references)
                )
            wanted = wanted.unflatten(0, (-1, references)).mean(1)
            losses["features"] = l1(features[: len(wanted)], wanted)
        return {name: losses[name] for name in self.generator_names()}

    def evaluation_batches(self) -> Iterator[ClassBatch]:
        """This rank's share of the images of unseen classes."""
        self._distances.begin()
        self._nearest.begin()
        self._shown.clear()
        yield from self.data.evaluation()

    def evaluate(self, batch: ClassBatch, networks: Networks) -> dict[str, Tensor]:
        """The number of images, and the sum of errors to the truth where there is one. What is
        needed for the other metrics stays here until `summarize`."""
        made = translated(batch, networks).float()
        real = batch.style[:, 0]
        classes = batch.style_class - len(self.data.classes)
        for number in classes.unique().tolist():
            name, chosen = self.data.unseen[number], classes == number
            if number not in self._shown and len(self._shown) < self.train.evaluation.pictures:
                first = int(chosen.nonzero()[0])
                self._shown[number] = part_of(batch, slice(first, first + 1))
            self._distances.add_real(name, real[chosen])
            self._distances.add_made(name, made[chosen])
        self._nearest.add(real, made, classes)
        sums = {"images": torch.tensor(len(made))}
        if batch.truth is not None:
            errors = (made.double() - batch.truth).abs().flatten(1).mean(1)
            sums["truth_l1"] = errors.sum()
        return sums

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """`frechet_random`: the distance of random features, as the mean over the unseen classes;
        so are FID and KID, if they are wanted. `nearest_class`: the share of translated images that
        look most like the references' class, of the unseen ones. On synthetic data `truth_l1`: the
        mean L1 distance from the content drawn as the references' class, in the range from -1 to 1.
        A collective call."""
        metrics = self._distances.distances(each=False)
        metrics["nearest_class"] = self._nearest.share()
        if "truth_l1" in sums:
            metrics["truth_l1"] = sums["truth_l1"] / sums["images"]
        return metrics

    def spreads(self) -> Mapping[str, float]:
        """That of all classes together: a class may have few images. And of each class whose images
        are all the same, infinity."""
        same = {name: s for name, s in self._distances.spreads().items() if math.isinf(s)}
        return {"images": self._distances.spread(), **same}

    def protocol(self) -> dict[str, Any]:
        """Of FID and KID."""
        return self._distances.protocol()

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """Each image drawn as the class that the style images of `request` show, all of which
        count."""
        generator = networks[GENERATOR]
        assert isinstance(generator, Generator)
        codes = []
        for first in range(0, len(request.style), request.batch_size):
            some = request.style[first : first + request.batch_size]
            references = read_images(some, self.train.images, self.device)
            codes.append(generator.reference_codes(references))
        code = torch.cat(codes).mean(0, keepdim=True)
        for files in request.batches():
            content = read_images(files, self.train.images, self.device)
            yield from zip(files, generator.translate_to(content, code), strict=True)

    def picture_rows(self, networks: Networks) -> Tensor:
        """A row for each of the first unseen classes of the evaluation before: content, first
        reference, translation (with an average of the weights, that of the weights themselves comes
        before that of the average), and the truth where it is known."""
        rows = []
        for batch in self._shown.values():
            made = self.outputs(partial(translated, batch), networks)
            columns = [batch.content, batch.style[:, 0], *(images.float() for images in made)]
            if batch.truth is not None:
                columns.append(batch.truth)
            rows.append(torch.stack(columns, 1))
        return torch.cat(rows)


def translated(batch: ClassBatch, networks: Networks) -> Tensor:
    """The content images of a batch in the style of their references: [B, 3, H, W]."""
    made: Tensor = networks[GENERATOR](batch.content, batch.style, reconstruct=False)["translation"]
    return made
