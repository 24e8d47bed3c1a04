"""Models that make an image from a label map or another image, with the true image given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.gan.comparison import image_sums
from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.data.batches import PairedBatch, condition, part_of
from hpc_amp.gan.data.config import PairedData
from hpc_amp.gan.data.reading import MapFiles, numbers_in, show_map, whole_view
from hpc_amp.gan.data.sets import check_labels, number_labels
from hpc_amp.gan.data.training import Prepared, prepare_paired
from hpc_amp.gan.discriminators import Judgement, MultiScaleDiscriminator, judge_together
from hpc_amp.gan.distance import SetDistances
from hpc_amp.gan.features import PerceptualLoss, feature_network
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.inputs import instances_of
from hpc_amp.gan.losses import (
    Weights,
    discriminator_loss,
    feature_matching_loss,
    generator_loss,
    kl_loss,
)
from hpc_amp.gan.lpips import Lpips
from hpc_amp.gan.paired_config import PairedLosses, PairedTrain, PatchJudges
from hpc_amp.gan.penalties import r1_penalty
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR, ConditionalGan
from hpc_amp.tasks.base import Losses, Networks, TrainingData


@dataclass(frozen=True, slots=True)
class Made:
    """What a generator made of a batch. A model with a style encoder gives the distribution of the
    styles [B, D], too."""

    images: Tensor
    mean: Tensor | None = None
    log_variance: Tensor | None = None


class ComparedGan(ConditionalGan):
    """Base class of models whose true images are given: the perceptual loss, and metrics of images
    against the true ones."""

    synthetic_labels: ClassVar[str] = "label_agreement"
    train: PairedTrain
    data: Prepared[Any]

    def prepare_measures(self, losses: PairedLosses) -> None:
        """Read the weights of the networks that losses and metrics need. Called once, when `data`
        is there."""
        self.data_name, self.synthetic = self.data.name, self.data.synthetic
        size, evaluation = self.train.images.size, self.train.evaluation
        self._distances = SetDistances(
            ("images",), self.world, self.device, fid=evaluation.fid, size=size
        )
        self._lpips: Lpips | None = None
        if evaluation.lpips.weights is not None:
            self._lpips = Lpips(evaluation.lpips, size, self.device)
        self._shown: Any = None
        """The samples of the picture, from the first batch of an evaluation."""
        self.prepare_perceptual(losses)

    def prepare_perceptual(self, losses: PairedLosses) -> None:
        """Read the weights of the network of the perceptual loss, if that counts. Raises
        ModelError."""
        self._perceptual: PerceptualLoss | None = None
        if losses.perceptual:
            network = feature_network(losses.perceptual_weights)
            self._perceptual = PerceptualLoss(network).to(self.device)

    @property
    def judged_channels(self) -> int:
        """Channels of what the discriminator sees beside an image."""
        return self.train.images.condition_channels

    def patch_discriminator(self, judges: PatchJudges, spectral: SpectralName) -> nn.Module:
        """A discriminator of patches of an image beside what it was made from."""
        return MultiScaleDiscriminator(
            self.judged_channels + 3,
            scales=judges.scales,
            width=judges.width,
            layers=judges.layers,
            spectral=spectral,
        )

    def deceiving_losses(
        self, on_real: Judgement, on_fake: Judgement, of: str = "", counts: Weights = None
    ) -> dict[str, Tensor]:
        """The losses `gan` and `features` of a discriminator, as far as their weights are not 0. Of
        another one than that of images, the names begin with `of`. `counts`: see `Weights`."""
        weights = self.loss_weights()
        losses = {}
        if weights[f"{of}gan"]:
            losses[f"{of}gan"] = generator_loss(on_fake[0], self.train.adversarial.loss, counts)
        if weights[f"{of}features"]:
            losses[f"{of}features"] = feature_matching_loss(on_real[1], on_fake[1], counts)
        return losses

    def evaluation_batches(self) -> Iterator[Any]:
        """This rank's share of the test set."""
        self._distances.begin()
        self._shown = None
        yield from self.data.evaluation()

    def compare(self, made: Tensor, batch: PairedBatch) -> dict[str, Tensor]:
        """Sums over images [B, 3, H, W] that were made of `batch`; their features stay here until
        the end of the evaluation."""
        self._distances.add_real("images", batch.images)
        self._distances.add_made("images", made)
        sums = image_sums(made, batch.images)
        if self._lpips is not None:
            sums["lpips"] = self._lpips(made, batch.images).sum()
        if self.data.labels_of is not None and batch.labels is not None:
            agrees = self.data.labels_of(made.float()) == batch.labels
            sums[self.synthetic_labels] = agrees.double().mean((1, 2)).sum()
        return sums

    def spreads(self) -> Mapping[str, float]:
        """Those of the sets of `summarize`."""
        return self._distances.spreads()

    def protocol(self) -> dict[str, Any]:
        """Of FID, KID and LPIPS."""
        own = {} if self._lpips is None else {"lpips": self._lpips.protocol}
        return {**self._distances.protocol(), **own}


class PairedGan(ComparedGan):
    """Base class of SPADE and pix2pixHD: data, losses, metrics and pictures of pairs.

    Metrics: those of `SetDistances`, `l1`, `psnr`, `ssim` and, if it is wanted, `lpips` against the
    true images, and on the synthetic set `label_agreement`, the share of pixels that look like
    their label.
    """

    data: Prepared[PairedBatch]

    @property
    @abstractmethod
    def paired_losses(self) -> PairedLosses:
        """Weights of the losses."""

    @abstractmethod
    def make(self, batch: PairedBatch, shown: Tensor, networks: Networks, phase: str) -> Made:
        """What the generator makes of `batch`, whose `condition` is `shown`, in a training step of
        `phase`."""

    @abstractmethod
    def render(self, batch: PairedBatch, networks: Networks) -> Tensor:
        """What the trained generator makes of `batch` in an evaluation: [B, 3, H, W]."""

    def prepare_data(self) -> TrainingData:
        """Find or draw the images, and read the weights of the perceptual network."""
        self.data = prepare_paired(self.train.images, self.train, self.world, self.device)
        self.prepare_measures(self.paired_losses)
        return self.data.training

    def loss_weights(self) -> Mapping[str, float]:
        """`gan`, `features` and `perceptual`."""
        losses = self.paired_losses
        return {
            "gan": losses.gan,
            "features": losses.features,
            "perceptual": losses.perceptual,
        }

    def true_images(self, batch: PairedBatch, phase: str) -> Tensor:
        """The images that the generator's of `phase` are compared with."""
        return batch.images

    def judged_condition(self, batch: PairedBatch, shown: Tensor, phase: str) -> Tensor:
        """What the discriminator of `phase` sees beside an image, of the same size. `shown` is the
        `condition` of the batch."""
        return shown

    def discriminator_losses(
        self, batch: PairedBatch, networks: Networks, phase: str = DISCRIMINATOR
    ) -> Losses:
        """`d`, and `r1` where it counts."""
        shown = condition(batch, self.train.images)
        with torch.no_grad():
            made = self.make(batch, shown, networks, phase)
        real = self.true_images(batch, phase)
        shown = self.judged_condition(batch, shown, phase)
        discriminator = networks[self.judge_of(phase)]
        (on_real, _), (on_fake, _) = judge_together(
            discriminator, torch.cat((shown, real), 1), torch.cat((shown, made.images), 1)
        )
        losses = {"d": discriminator_loss(on_real, on_fake, self.train.adversarial.loss)}
        if self.train.adversarial.r1:
            losses["r1"] = r1_penalty(
                lambda points: discriminator(torch.cat((shown, points), 1))[0], real
            )
        return losses

    def generator_losses(
        self, batch: PairedBatch, networks: Networks, phase: str = GENERATOR
    ) -> Losses:
        """Those whose weight is not 0."""
        shown = condition(batch, self.train.images)
        made = self.make(batch, shown, networks, phase)
        real = self.true_images(batch, phase)
        shown = self.judged_condition(batch, shown, phase)
        judged = judge_together(
            networks[self.judge_of(phase)],
            torch.cat((shown, real), 1),
            torch.cat((shown, made.images), 1),
        )
        losses = self.deceiving_losses(*judged)
        if self._perceptual is not None:
            losses["perceptual"] = self._perceptual(made.images, real)
        if (
            self.loss_weights().get("kl")
            and made.mean is not None
            and made.log_variance is not None
        ):
            losses["kl"] = kl_loss(made.mean, made.log_variance)
        return losses

    def judge_of(self, phase: str) -> str:
        """The discriminator that judges the images of `phase`."""
        return DISCRIMINATOR

    def forward_pass(self, batch: PairedBatch, networks: Networks) -> bool:
        """Make images as in an evaluation."""
        self.render(batch, networks)
        return True

    def evaluate(self, batch: PairedBatch, networks: Networks) -> dict[str, Tensor]:
        """Sums over the batch; the features of its images stay here until `summarize`."""
        if self._shown is None:
            self._shown = part_of(batch, slice(self.train.evaluation.pictures))
        return self.compare(self.render(batch, networks), batch)

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the class. A collective call."""
        images = sums["images"]
        means = {name: value / images for name, value in sums.items() if name != "images"}
        return {**self._distances.distances(), **means}

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """An image from each label map, or input image, of `request`."""
        for files in request.batches():
            made = self.render(
                read_inputs(files, request, self.train.images, self.device), networks
            )
            yield from zip(files, made, strict=True)

    def picture_rows(self, networks: Networks) -> Tensor:
        """Input, output and truth; where the weights are averaged, the output of the weights
        themselves and that of the average."""
        assert self._shown is not None
        shown = self._shown
        outputs = self.outputs(lambda of: self.render(shown, of), networks)
        columns = [show_condition(shown, self.train.images), *outputs, shown.images]
        return torch.stack([column.float() for column in columns], 1)


def read_inputs(
    files: Sequence[Path], request: Request, data: PairedData, device: torch.device
) -> PairedBatch:
    """Label maps or input images as a batch whose true images are not known: they are 0. Raises
    DataError."""
    seeds = request.seeds(files)
    instances = None
    if data.instances:
        assert request.instances is not None  # see `PairedTrain.generation_options`
        partners = [instances_of(file, request.folder, request.instances) for file in files]
        maps = MapFiles([str(file) for file in partners], colours=True)
        instances = _read_maps(maps, len(partners), data).long().to(device)
    if data.inputs == "images":
        inputs = read_images(files, data, device)
        return PairedBatch(torch.zeros_like(inputs), seeds, instances=instances, inputs=inputs)
    maps = MapFiles([str(file) for file in files])
    labels = number_labels(_read_maps(maps, len(files), data, check=True), data).to(device)
    images = torch.zeros(len(labels), 3, *labels.shape[1:], device=device)
    return PairedBatch(images, seeds, labels=labels, instances=instances)


def _read_maps(source: MapFiles, count: int, data: PairedData, *, check: bool = False) -> Tensor:
    maps = []
    for number in range(count):
        numbers = source.open(number)
        if check:
            check_labels(numbers_in(numbers), data, source.name(number))
        maps.append(show_map(numbers, whole_view(data)))
    return torch.stack(maps)


def show_condition(batch: PairedBatch, images: PairedData) -> Tensor:
    """The input as images [B, 3, H, W] from -1 to 1: labels have a colour each."""
    if batch.inputs is not None:
        return batch.inputs
    assert batch.labels is not None
    colours = label_colours(images.label_channels).to(batch.labels.device)
    return colours[batch.labels].permute(0, 3, 1, 2)


def label_colours(count: int) -> Tensor:
    """Colours [count, 3] from -1 to 1 that differ from each other: hues in steps of the golden
    ratio."""
    hues = torch.arange(count)[:, None] * 0.618034 + torch.tensor([0.0, 1 / 3, 2 / 3])
    shade = 1 - 0.4 * (torch.arange(count)[:, None] % 3) / 2
    return (torch.cos(2 * torch.pi * hues) * shade).clamp(-1, 1)


def half_size(images: Tensor) -> Tensor:
    """[B, C, H, W] to [B, C, H/2, W/2], each pixel the mean of four."""
    return F.avg_pool2d(images, 2)
