"""The task of a model of video: losses over sequences, metrics of frames and of consistency."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import condition
from hpc_amp.gan.data.training import Prepared, prepare_videos
from hpc_amp.gan.discriminators import Judgement, judge_together
from hpc_amp.gan.generation import Request
from hpc_amp.gan.layers import initialize
from hpc_amp.gan.losses import discriminator_loss
from hpc_amp.gan.paired import ComparedGan, read_inputs, show_condition
from hpc_amp.gan.penalties import r1_penalty
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.config import VideoTrain
from hpc_amp.gan.video.consistency import (
    consistency_sums,
    flow_loss,
    mask_loss,
    revisit_sums,
    warp_loss,
)
from hpc_amp.gan.video.discriminators import PartsDiscriminator, judge_parts, time_windows
from hpc_amp.gan.video.networks import SequenceGenerator
from hpc_amp.gan.video.regions import crop, squares
from hpc_amp.tasks.base import Losses, Networks, Phase, TrainingData

TEMPORAL, REGION = f"temporal_{DISCRIMINATOR}", f"region_{DISCRIMINATOR}"
PICTURE_FRAMES = 10
"""Columns of a picture, at most."""


FrameMaker = Callable[[Path, Tensor, Tensor | None, Tensor | None], Tensor]
"""Makes a frame [1, 1, 3, H, W] of the input in a file: from its condition [1, 1, C, H, W] and,
after the first frame, the newest frames and conditions, [1, N, ...] both."""


@dataclasses.dataclass(frozen=True, slots=True)
class MadeVideo:
    """What a generator made of a batch."""

    frames: Tensor
    """[B, T, 3, H, W] from -1 to 1."""
    flows: Tensor
    """[B, T - 1, 2, H, W] in pixels, from each frame to the one before."""
    masks: Tensor
    """[B, T - 1, 1, H, W]: 1 where a frame is not taken from the one before."""


class VideoGan(ComparedGan):
    """Base class of the models of video: a generator of sequences, against a discriminator of
    frames, one of how frames follow each other, and one of regions if wanted.

    Metrics: `frechet_random`, `l1`, `psnr`, `ssim` of frames against the true ones, on the
    synthetic set `label_agreement`, and with reference flow `flow_error`, `warping_error` and
    `warping_error_real` (see `hpc_amp.gan.video.consistency`). With points, `revisit_error` and
    `revisit_error_real`; with `evaluation.round_trip`, `round_trip`. One that nothing counts for is
    left out: so where no flow is known, or no point is seen again.
    """

    counts: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("flow_error", "warping_error", "warping_error_real"), "known"),
        **dict.fromkeys(("revisit_error", "revisit_error_real"), "revisited"),
        "round_trip": "sequences",
    }
    """What the sum of a metric is divided by; for others, it is the number of images."""
    train: VideoTrain
    data: Prepared[Any]
    _shown_frames: Tensor
    """What the generator made of `_shown`."""

    def build_generator(self) -> nn.Module:
        """The network that makes sequences, with its first weights."""
        return SequenceGenerator(self.train.images.condition_channels, self.train.networks)

    def make(self, batch: VideoBatch, shown: Tensor, networks: Networks) -> MadeVideo:
        """What the generator makes of `batch`, whose `conditions` are `shown`."""
        return MadeVideo(*networks[GENERATOR](shown))

    def prepare_data(self) -> TrainingData:
        """Find or draw the sequences, and read the weights of the perceptual network."""
        self.data = self.prepare_sequences()
        self.prepare_measures(self.train.networks.losses)
        return self.data.training

    def prepare_sequences(self) -> Prepared[Any]:
        """Find or draw the sequences."""
        return prepare_videos(self.train.images, self.train, self.world, self.device)

    def beside(self, batch: VideoBatch, shown: Tensor) -> Tensor:
        """What the discriminator of frames sees beside each frame of `batch`, whose `conditions`
        are `shown`: [B * T, `judged_channels`, H, W]."""
        return shown.flatten(0, 1)

    def build_networks(self) -> dict[str, nn.Module]:
        """The generator, and up to three discriminators."""
        networks, images = self.train.networks, self.train.images
        temporal, regions = networks.temporal, networks.regions
        built: dict[str, nn.Module] = {
            GENERATOR: self.build_generator(),
            DISCRIMINATOR: self.patch_discriminator(networks.discriminator, networks.spectral),
        }
        if temporal.scales:
            flow_channels = 2 * (temporal.frames - 1) if images.flow != "none" else 0
            built[TEMPORAL] = PartsDiscriminator(
                3 * temporal.frames + flow_channels,
                parts=temporal.scales,
                width=temporal.width,
                layers=temporal.layers,
                spectral=networks.spectral,
            )
        if self.train.regions:
            built[REGION] = PartsDiscriminator(
                images.condition_channels + 3,
                parts=self.train.regions,
                width=regions.width,
                layers=regions.layers,
                spectral=networks.spectral,
            )
        for name, network in built.items():  # in order, so that a seed gives the same weights
            if name != GENERATOR:
                initialize(network)
        return built

    def loss_weights(self) -> Mapping[str, float]:
        """Those of the section `losses`."""
        losses = self.train.networks.losses
        temporal = self.train.networks.temporal.scales > 0
        regions = self.train.regions > 0
        return {
            "gan": losses.gan,
            "features": losses.features,
            "perceptual": losses.perceptual,
            "temporal_gan": losses.temporal_gan if temporal else 0.0,
            "temporal_features": losses.temporal_features if temporal else 0.0,
            "region_gan": losses.region_gan if regions else 0.0,
            "region_features": losses.region_features if regions else 0.0,
            "flow": losses.flow,
            "warp": losses.warp,
            "mask": losses.mask,
        }

    def phases(self) -> tuple[Phase, ...]:
        """The discriminators' update, then the generator's."""
        judging, making = super().phases()
        networks, losses = [DISCRIMINATOR], [*judging.losses[0]]
        if self.train.networks.temporal.scales:
            networks.append(TEMPORAL)
            losses.append("temporal_d")
        if self.train.regions:
            networks.append(REGION)
            losses.append("region_d")
        all_judging = dataclasses.replace(
            judging, networks=tuple(networks), losses=(tuple(losses),)
        )
        return all_judging, making

    def discriminator_losses(self, batch: VideoBatch, networks: Networks) -> Losses:
        """`d`, and where they count `r1`, `temporal_d` and `region_d`."""
        shown = conditions(batch, self.train.images)
        with torch.no_grad():
            made = self.make(batch, shown, networks).frames
        kind = self.train.adversarial.loss
        of_frames = self.beside(batch, shown)
        real = batch.images.flatten(0, 1)
        discriminator = networks[DISCRIMINATOR]
        (on_real, _), (on_fake, _) = judge_together(
            discriminator,
            torch.cat((of_frames, real), 1),
            torch.cat((of_frames, made.flatten(0, 1)), 1),
        )
        losses = {"d": discriminator_loss(on_real, on_fake, kind)}
        if self.train.adversarial.r1:
            losses["r1"] = r1_penalty(
                lambda points: discriminator(torch.cat((of_frames, points), 1))[0], real
            )
        if TEMPORAL in networks:
            (on_real, _), (on_fake, _) = self._judge_windows(batch, made, networks)
            losses["temporal_d"] = discriminator_loss(on_real, on_fake, kind)
        if REGION in networks:
            (on_real, _), (on_fake, _), shares = self._judge_regions(batch, shown, made, networks)
            losses["region_d"] = discriminator_loss(on_real, on_fake, kind, shares)
        return losses

    def generator_losses(self, batch: VideoBatch, networks: Networks) -> Losses:
        """Those whose weight is not 0."""
        shown = conditions(batch, self.train.images)
        video = self.make(batch, shown, networks)
        made = video.frames
        weights = self.loss_weights()
        of_frames, real = self.beside(batch, shown), batch.images.flatten(0, 1)
        frames = made.flatten(0, 1)
        on_real, on_fake = judge_together(
            networks[DISCRIMINATOR],
            torch.cat((of_frames, real), 1),
            torch.cat((of_frames, frames), 1),
        )
        losses = self.deceiving_losses(on_real, on_fake)
        if self._perceptual is not None:
            losses["perceptual"] = self._perceptual(frames, real)
        if weights["temporal_gan"] or weights["temporal_features"]:
            on_real, on_fake = self._judge_windows(batch, made, networks)
            losses |= self.deceiving_losses(on_real, on_fake, "temporal_")
        if weights["region_gan"] or weights["region_features"]:
            on_real, on_fake, shares = self._judge_regions(batch, shown, made, networks)
            losses |= self.deceiving_losses(on_real, on_fake, "region_", shares)
        return {**losses, **self.sequence_losses(batch, video)}

    def sequence_losses(self, batch: VideoBatch, video: MadeVideo) -> Losses:
        """Those of flows and masks, and what else a model has."""
        weights = self.loss_weights()
        losses: dict[str, Tensor] = {}
        if weights["flow"]:
            assert batch.flows is not None and batch.known is not None  # noqa: PT018
            losses["flow"] = flow_loss(video.flows, batch.flows, batch.known)
        if weights["warp"]:
            losses["warp"] = warp_loss(video.flows, batch.images)
        if weights["mask"]:
            assert batch.known is not None
            losses["mask"] = mask_loss(video.masks, batch.known)
        return losses

    def _judge_windows(
        self, batch: VideoBatch, made: Tensor, networks: Networks
    ) -> tuple[Judgement, Judgement]:
        """What the temporal discriminator says of true and of `made` frames."""
        temporal, unit = self.train.networks.temporal, self.train.networks.flow.scale
        real, fake = (
            time_windows(
                images, batch.flows, frames=temporal.frames, scales=temporal.scales, unit=unit
            )
            for images in (batch.images, made)
        )
        return judge_parts(networks[TEMPORAL], real, fake)

    def _judge_regions(
        self, batch: VideoBatch, shown: Tensor, made: Tensor, networks: Networks
    ) -> tuple[Judgement, Judgement, list[Tensor]]:
        """What the discriminator of regions says of true and of `made` frames, and for each region
        which frames have it, bool [B * T]. The others are judged, too, so that all weights have
        gradients and shapes do not depend on the data, but must not count."""
        regions = self.train.networks.regions
        least = max(1, regions.size // 4)
        found = []
        if batch.labels is not None:
            labels = batch.labels.flatten(0, 1)
            found += [squares(labels, label, least) for label in regions.labels]
        if batch.regions is not None:
            for column, row, side in batch.regions.flatten(0, 1).permute(1, 2, 0):
                found.append((torch.stack((column, row, side.clamp(min=least)), 1), side > 0))
        real, fake = (
            torch.cat((shown.float(), frames.float()), 2).flatten(0, 1)
            for frames in (batch.images, made)
        )
        crops_real, crops_fake = (
            [crop(frames, places, regions.size) for places, _ in found] for frames in (real, fake)
        )
        on_real, on_fake = judge_parts(networks[REGION], crops_real, crops_fake)
        return on_real, on_fake, [present for _, present in found]

    # -- evaluation -------------------------------------------------------------------------------

    def render(self, batch: VideoBatch, networks: Networks) -> tuple[Tensor, Tensor]:
        """Frames [B, T, 3, H, W] and flows [B, T - 1, 2, H, W] of an evaluation."""
        video = self.make(batch, conditions(batch, self.train.images), networks)
        return video.frames, video.flows

    def evaluate(self, batch: VideoBatch, networks: Networks) -> dict[str, Tensor]:
        """Sums over the batch; the features of its frames stay here until `summarize`."""
        made, flows = self.render(batch, networks)
        if self._shown is None:
            self._shown = batch.first(self.train.evaluation.pictures)
            self._shown_frames = made[: self.train.evaluation.pictures].clone()
        sums = self.video_sums(made, flows, batch)
        if self.train.evaluation.round_trip:
            there_and_back, _ = self.render(batch.there_and_back(), networks)
            ends = there_and_back[:, 0].double() - there_and_back[:, -1].double()
            sums["round_trip"] = ends.abs().mean((1, 2, 3)).sum()
            sums["sequences"] = torch.tensor(float(len(batch)), dtype=torch.float64)
        return sums

    def video_sums(self, made: Tensor, flows: Tensor, batch: VideoBatch) -> dict[str, Tensor]:
        """Sums over frames [B, T, 3, H, W] and flows [B, T - 1, 2, H, W] that were made of
        `batch`."""
        sums = self.compare(made.flatten(0, 1), batch.frames)
        if batch.flows is not None and batch.known is not None:
            sums |= consistency_sums(made, flows, batch.images, batch.flows, batch.known)
        if batch.points is not None:
            sums |= revisit_sums(made, batch.images, batch.points)
        return sums

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the class. A collective call."""
        found = self._distances.distances()
        for name, value in sums.items():
            count = sums[self.counts.get(name, "images")]
            if name != "images" and name not in self.counts.values() and count > 0:
                found[name] = value / count
        return found

    def picture_rows(self, networks: Networks) -> Tensor:
        """For each sequence a row of inputs, one of generated and one of true frames, in the order
        of time: those of the evaluation, none is made again. Of more than `PICTURE_FRAMES` frames,
        some that are evenly spread."""
        assert self._shown is not None
        shown, made = self._shown, self._shown_frames
        inputs = show_condition(shown.frames, self.train.images).unflatten(0, made.shape[:2])
        rows = torch.stack([part.float() for part in (inputs, made, shown.images)], 1)
        length = rows.shape[2]
        at = torch.linspace(0, length - 1, min(length, PICTURE_FRAMES)).round().long()
        return rows[:, :, at].flatten(0, 1)

    def animation(self, networks: Networks) -> Tensor | None:
        """The rows of `pictures` as they follow each other in time. Those of a sequence, such as
        inputs, generated and true frames, are side by side; sequences are one below another."""
        if self.train.evaluation.pictures == 0:
            return None
        assert self._shown is not None
        rows = self.picture_rows(networks).float().cpu()
        sequences = rows.unflatten(0, (len(self._shown), -1))  # [sequences, rows, T, 3, H, W]
        moving: Tensor = sequences.permute(2, 3, 0, 4, 1, 5).flatten(4, 5).flatten(2, 3)
        return moving.div(2).add(0.5).clamp(0, 1)

    # -- generation -------------------------------------------------------------------------------

    def generation_parts(self, request: Request) -> list[list[Path]]:
        """The sequences of this rank: the files of a folder in the order of their names."""
        return request.sequences()

    def generation_context(self, files: Sequence[Path], request: Request) -> tuple[Tensor, ...]:
        """What the frames of the sequence of `files` are made from besides: further arguments of
        the generator. Raises DataError."""
        return ()

    def frame_maker(
        self, files: Sequence[Path], request: Request, networks: Networks
    ) -> FrameMaker:
        """What makes the frames of the sequence of `files`, one after another."""
        context = self.generation_context(files, request)

        def make(file: Path, now: Tensor, images: Tensor | None, shown: Tensor | None) -> Tensor:
            made: Tensor = networks[GENERATOR](now, images, shown, *context)[0]
            return made

        return make

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """A frame from each file; each folder is a sequence. Only the newest frames are kept, so
        that a sequence may have any length."""
        previous = self.train.networks.previous
        for files in self.generation_parts(request):
            make = self.frame_maker(files, request, networks)
            images: Tensor | None = None
            shown: Tensor | None = None
            for file in files:
                batch = read_inputs([file], request, self.train.images, self.device)
                now = condition(batch, self.train.images)[:, None]
                made = make(file, now, images, shown)
                if images is None or shown is None:
                    images = made.expand(-1, previous, -1, -1, -1)
                    shown = now.expand(-1, previous, -1, -1, -1)
                else:
                    images = torch.cat((images[:, 1:], made), 1)
                    shown = torch.cat((shown[:, 1:], now), 1)
                yield file, made[0, 0]
