"""pix2pixHD as a task: its networks and phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpc_amp.data.errors import DataError
from hpc_amp.distributed.collect import gather_rows
from hpc_amp.gan.data.batches import PairedBatch, condition
from hpc_amp.gan.generation import Request
from hpc_amp.gan.layers import initialize, upsample
from hpc_amp.gan.paired import Made, PairedGan, half_size
from hpc_amp.gan.paired_config import PairedLosses
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR
from hpc_amp.tasks.base import Losses, Networks, Phase
from hpc_amp.tasks.pix2pixhd.config import Pix2pixHdConfig
from hpc_amp.tasks.pix2pixhd.networks import (
    GlobalGenerator,
    Head,
    InstanceEncoder,
    LocalEnhancer,
    Objects,
)

HEAD, ENHANCER, ENCODER = "head", "enhancer", "encoder"
COARSE_DISCRIMINATOR = "coarse_discriminator"
"""A network, and the phase that updates it."""
COARSE, FINE = "coarse", "fine"
"""Phases that update the global generator alone, and the enhancer alone."""
CLUSTERED = 1000
"""Training images whose features are clustered, at most: an evaluation encodes them."""
_PREFIX = {COARSE_DISCRIMINATOR: "coarse_", COARSE: "coarse_", FINE: "fine_"}
"""What the names of the losses of a phase begin with: a loss has one phase."""


class Pix2pixHd(PairedGan):
    """A global generator, with a local enhancer after it where the job asks for one.

    With an enhancer, the first epochs train the global generator on images of half the size against
    a discriminator of its own, the next ones the enhancer alone, the others both.
    """

    train: Pix2pixHdConfig
    _draws = False
    """Whether instance features are drawn from clusters: there is no true image."""

    @property
    def paired_losses(self) -> PairedLosses:
        """Weights of the losses."""
        return self.train.pix2pixhd.losses

    def build_networks(self) -> dict[str, nn.Module]:
        """Generator and discriminator, and those that the job asks for besides."""
        networks = self.train.pix2pixhd
        scales = networks.discriminator.scales
        channels = self.train.images.condition_channels
        built: dict[str, nn.Module] = {}
        features = networks.instance_features
        if features is not None:
            built[ENCODER] = InstanceEncoder(features, self.train.images.label_channels, networks)
            channels += features.channels
        built[GENERATOR] = GlobalGenerator(channels, networks)
        built[HEAD] = Head(networks.width)
        if networks.enhancer is not None:
            built[ENHANCER] = LocalEnhancer(channels, networks, networks.enhancer.blocks)
            built[COARSE_DISCRIMINATOR] = self._discriminator(max(1, scales - 1))
        built[DISCRIMINATOR] = self._discriminator(scales)
        return built

    def _discriminator(self, scales: int) -> nn.Module:
        networks = self.train.pix2pixhd
        judges = dataclasses.replace(networks.discriminator, scales=scales)
        made = self.patch_discriminator(judges, networks.spectral)
        initialize(made, "normal")
        return made

    def phases(self) -> tuple[Phase, ...]:
        """Discriminator and generator; with an enhancer, those of coarse images, then the enhancer,
        then all."""
        judge, make = super().phases()
        networks = self.train.pix2pixhd
        encoder = (ENCODER,) if networks.instance_features is not None else ()
        if networks.enhancer is None:
            return judge, dataclasses.replace(make, networks=(*encoder, GENERATOR, HEAD))
        begin = networks.enhancer.coarse_epochs
        joint = begin + networks.enhancer.fine_epochs
        coarse_judge = _renamed(judge, COARSE_DISCRIMINATOR, (COARSE_DISCRIMINATOR,))
        coarse = _renamed(make, COARSE, (*encoder, GENERATOR, HEAD))
        fine = _renamed(make, FINE, (ENHANCER,))
        return (
            dataclasses.replace(coarse_judge, ends=begin),
            dataclasses.replace(coarse, ends=begin),
            dataclasses.replace(judge, begins=begin),
            dataclasses.replace(fine, begins=begin, ends=joint),
            dataclasses.replace(make, networks=(*encoder, GENERATOR, ENHANCER), begins=joint),
        )

    def losses(self, phase: str, batch: PairedBatch, networks: Networks) -> Iterator[Losses]:
        """Those of the phase, of one forward pass."""
        judging = phase in (DISCRIMINATOR, COARSE_DISCRIMINATOR)
        compute = self.discriminator_losses if judging else self.generator_losses
        prefix = _PREFIX.get(phase, "")
        yield {prefix + name: loss for name, loss in compute(batch, networks, phase).items()}

    def judge_of(self, phase: str) -> str:
        """The discriminator of coarse images, or that of whole ones."""
        return COARSE_DISCRIMINATOR if _is_coarse(phase) else DISCRIMINATOR

    def true_images(self, batch: PairedBatch, phase: str) -> Tensor:
        """Of half the size in coarse phases."""
        return half_size(batch.images) if _is_coarse(phase) else batch.images

    def judged_condition(self, batch: PairedBatch, shown: Tensor, phase: str) -> Tensor:
        """Of half the size in coarse phases."""
        return condition(half(batch), self.train.images) if _is_coarse(phase) else shown

    def make(self, batch: PairedBatch, shown: Tensor, networks: Networks, phase: str) -> Made:
        """What the networks of a phase make of a batch: of half the size in coarse phases."""
        inputs = self._input(batch, shown, networks)
        if self.train.pix2pixhd.enhancer is None:
            return Made(networks[HEAD](networks[GENERATOR](inputs)))
        features = networks[GENERATOR](inputs[:, :, ::2, ::2])
        if _is_coarse(phase):
            return Made(networks[HEAD](features))
        return Made(networks[ENHANCER](inputs, features))

    def render(self, batch: PairedBatch, networks: Networks) -> Tensor:
        """Images of the whole size. Before the enhancer is trained, coarse ones are enlarged."""
        shown = condition(batch, self.train.images)
        enhancer = networks.get(ENHANCER)
        if isinstance(enhancer, LocalEnhancer) and not enhancer.begun:
            return upsample(self.make(batch, shown, networks, COARSE).images)
        return self.make(batch, shown, networks, GENERATOR).images

    def _input(self, batch: PairedBatch, shown: Tensor, networks: Networks) -> Tensor:
        """The condition, with instance features where the job has them."""
        if ENCODER not in networks:
            return shown
        assert batch.instances is not None
        assert batch.labels is not None
        if self._draws:
            features = _encoder(networks).drawn(batch.instances, batch.labels, batch.seeds)
        else:
            features = networks[ENCODER](batch.images, batch.instances)
        return torch.cat((shown, features), 1)

    # -- clusters of instance features ------------------------------------------------------------

    def evaluation_batches(self) -> Iterator[Any]:
        """This rank's share of the test pairs, then, with instance features, of training pairs
        whose features are clustered."""
        self._looks: list[Tensor] = []
        self._evaluated: Networks | None = None
        yield from super().evaluation_batches()
        if self.train.pix2pixhd.instance_features is not None:
            for batch in self.data.training.unchanged(CLUSTERED):
                yield _Clustered(batch)

    def evaluate(self, batch: PairedBatch | _Clustered, networks: Networks) -> dict[str, Tensor]:
        """Sums over the test pairs; the features of training pairs stay here until `summarize`."""
        self._evaluated = networks
        if isinstance(batch, PairedBatch):
            return super().evaluate(batch, networks)
        pairs = batch.pairs
        assert pairs.instances is not None
        assert pairs.labels is not None
        objects = Objects(pairs.instances, pairs.labels)
        looks = objects.means(networks[ENCODER](pairs.images, pairs.instances))
        self._looks.append(torch.cat((objects.labels[:, None].float(), looks.float()), 1))
        return {}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the class. Networks that are evaluated, and those that are trained, get
        the clusters, which are the same for any number of ranks. A collective call."""
        if self.train.pix2pixhd.instance_features is not None:
            # Some ranks may have no objects, and all take part.
            trained = _encoder(self.trained)
            none = torch.zeros(0, 1 + trained.centres.shape[2], device=self.device)
            rows = gather_rows(torch.cat([none, *self._looks]), self.world).cpu()
            self._looks = []
            trained.set_clusters(rows[:, 1:], rows[:, 0].long())
            if self._evaluated is not None and self._evaluated is not self.trained:
                _encoder(self._evaluated).take_clusters(trained)
        return super().summarize(sums)

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """An image from each label map or input image. With instance features, each object looks
        like one of the clusters of its label, which depends on the seed and the file's name."""
        if ENCODER in networks and not _encoder(networks).found.any():
            raise DataError(
                "the checkpoint has no clusters of instance features: it is older than the first "
                "evaluation of the run"
            )
        self._draws = True
        yield from super().generate(request, networks)


@dataclasses.dataclass(frozen=True, slots=True)
class _Clustered:
    """Training pairs whose features are clustered."""

    pairs: PairedBatch


def _encoder(networks: Networks) -> InstanceEncoder:
    encoder = networks[ENCODER]
    assert isinstance(encoder, InstanceEncoder)
    return encoder


def half(batch: PairedBatch) -> PairedBatch:
    """The batch at half the size: every second pixel of maps, means of pixels of images."""

    def thin(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[..., ::2, ::2]

    inputs = None if batch.inputs is None else half_size(batch.inputs)
    return PairedBatch(
        half_size(batch.images), batch.seeds, thin(batch.labels), thin(batch.instances), inputs
    )


def _is_coarse(phase: str) -> bool:
    return phase in (COARSE, COARSE_DISCRIMINATOR)


def _renamed(phase: Phase, name: str, networks: tuple[str, ...]) -> Phase:
    """A phase under another name, whose losses have that of the phase before theirs."""
    prefix = _PREFIX[name]
    (losses,) = phase.losses
    return dataclasses.replace(
        phase,
        name=name,
        networks=networks,
        losses=(tuple(prefix + loss for loss in losses),),
        weights={prefix + loss: weight for loss, weight in phase.weights.items()},
    )
