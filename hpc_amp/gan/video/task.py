"""The task of a model of video: losses over sequences, metrics of frames and of consistency."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hpc_amp.gan.data.batches import condition
from hpc_amp.gan.data.training import Prepared, prepare_videos
from hpc_amp.gan.discriminators import MultiScaleDiscriminator, judge_together
from hpc_amp.gan.generation import Request
from hpc_amp.gan.layers import initialize
from hpc_amp.gan.losses import discriminator_loss, feature_matching_loss, generator_loss
from hpc_amp.gan.paired import ComparedGan, read_inputs, show_condition
from hpc_amp.gan.penalties import r1_penalty
from hpc_amp.gan.task import DISCRIMINATOR, GENERATOR
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.config import VideoTrain
from hpc_amp.gan.video.consistency import (
    consistency_sums,
    flow_loss,
    guidance_loss,
    mask_loss,
    revisit_sums,
    warp_loss,
)
from hpc_amp.gan.video.discriminators import TemporalDiscriminator, judge_windows, time_windows
from hpc_amp.gan.video.networks import SequenceGenerator
from hpc_amp.tasks.base import Losses, Networks, Phase, TrainingData

TEMPORAL = f"temporal_{DISCRIMINATOR}"
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
    guidance: Tensor | None = None
    """[B, T, 4, H, W]: what is known of the scene at each pixel, and where it is."""


class VideoGan(ComparedGan):
    """Base class of the models of video: a generator of sequences, against a discriminator of
    frames and one of how frames follow each other.

    Metrics: `frechet_random`, `l1`, `psnr`, `ssim` of frames against the true ones, on the
    synthetic set `label_agreement`, and with reference flow `flow_error`, `warping_error` and
    `warping_error_real` (see `hpc_amp.gan.video.consistency`). With points, `revisit_error` and
    `revisit_error_real`; with `evaluation.round_trip`, `round_trip`.
    """

    train: VideoTrain
    data: Prepared[VideoBatch]

    def build_generator(self) -> nn.Module:
        """The network that makes sequences, with its first weights."""
        return SequenceGenerator(self.train.images.condition_channels, self.train.networks)

    def make(self, batch: VideoBatch, shown: Tensor, networks: Networks) -> MadeVideo:
        """What the generator makes of `batch`, whose `conditions` are `shown`."""
        return MadeVideo(*networks[GENERATOR](shown))

    def prepare_data(self) -> TrainingData:
        """Find or draw the sequences, and read the weights of the perceptual network."""
        self.data = prepare_videos(self.train.images, self.train, self.world, self.device)
        self.prepare_measures(self.train.networks.losses)
        self._shown: VideoBatch | None = None
        return self.data.training

    def build_networks(self) -> dict[str, nn.Module]:
        """The generator, and one or two discriminators."""
        networks, images = self.train.networks, self.train.images
        judges, temporal = networks.discriminator, networks.temporal
        built: dict[str, nn.Module] = {
            GENERATOR: self.build_generator(),
            DISCRIMINATOR: MultiScaleDiscriminator(
                images.condition_channels + 3,
                scales=judges.scales,
                width=judges.width,
                layers=judges.layers,
                spectral=networks.spectral,
            ),
        }
        if temporal.scales:
            flow_channels = 2 * (temporal.frames - 1) if images.flow == "known" else 0
            built[TEMPORAL] = TemporalDiscriminator(
                3 * temporal.frames + flow_channels,
                scales=temporal.scales,
                width=temporal.width,
                layers=temporal.layers,
                spectral=networks.spectral,
            )
        for name in built.keys() - {GENERATOR}:
            initialize(built[name])
        return built

    def loss_weights(self) -> Mapping[str, float]:
        """Those of the section `losses`."""
        losses = self.train.networks.losses
        temporal = self.train.networks.temporal.scales > 0
        return {
            "gan": losses.gan,
            "features": losses.features,
            "perceptual": losses.perceptual,
            "temporal_gan": losses.temporal_gan if temporal else 0.0,
            "temporal_features": losses.temporal_features if temporal else 0.0,
            "flow": losses.flow,
            "warp": losses.warp,
            "mask": losses.mask,
        }

    def phases(self) -> tuple[Phase, ...]:
        """The discriminators' update, then the generator's."""
        judging, making = super().phases()
        if self.train.networks.temporal.scales == 0:
            return judging, making
        (names,) = judging.losses
        both = dataclasses.replace(
            judging, networks=(DISCRIMINATOR, TEMPORAL), losses=((*names, "temporal_d"),)
        )
        return both, making

    def discriminator_losses(self, batch: VideoBatch, networks: Networks) -> Losses:
        """`d`, `temporal_d`, and `r1` where it counts."""
        shown = conditions(batch, self.train.images)
        with torch.no_grad():
            made = self.make(batch, shown, networks).frames
        kind = self.train.adversarial.loss
        of_frames = shown.flatten(0, 1)
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
            (on_real, _), (on_fake, _) = judge_windows(
                networks[TEMPORAL], self._windows(batch.images, batch), self._windows(made, batch)
            )
            losses["temporal_d"] = discriminator_loss(on_real, on_fake, kind)
        return losses

    def generator_losses(self, batch: VideoBatch, networks: Networks) -> Losses:
        """Those whose weight is not 0."""
        shown = conditions(batch, self.train.images)
        video = self.make(batch, shown, networks)
        made = video.frames
        kind, weights = self.train.adversarial.loss, self.loss_weights()
        of_frames, real = shown.flatten(0, 1), batch.images.flatten(0, 1)
        frames = made.flatten(0, 1)
        (_, real_features), (on_fake, fake_features) = judge_together(
            networks[DISCRIMINATOR],
            torch.cat((of_frames, real), 1),
            torch.cat((of_frames, frames), 1),
        )
        losses: dict[str, Tensor] = {}
        if weights["gan"]:
            losses["gan"] = generator_loss(on_fake, kind)
        if weights["features"]:
            losses["features"] = feature_matching_loss(real_features, fake_features)
        if self._perceptual is not None:
            losses["perceptual"] = self._perceptual(frames, real)
        if weights["temporal_gan"] or weights["temporal_features"]:
            (_, real_features), (on_fake, fake_features) = judge_windows(
                networks[TEMPORAL], self._windows(batch.images, batch), self._windows(made, batch)
            )
            if weights["temporal_gan"]:
                losses["temporal_gan"] = generator_loss(on_fake, kind)
            if weights["temporal_features"]:
                losses["temporal_features"] = feature_matching_loss(real_features, fake_features)
        if weights["flow"]:
            assert batch.flows is not None and batch.known is not None  # noqa: PT018
            losses["flow"] = flow_loss(video.flows, batch.flows, batch.known)
        if weights["warp"]:
            losses["warp"] = warp_loss(video.flows, batch.images)
        if weights["mask"]:
            assert batch.known is not None
            losses["mask"] = mask_loss(video.masks, batch.known)
        if weights.get("guidance"):
            assert video.guidance is not None
            losses["guidance"] = guidance_loss(made, video.guidance)
        return losses

    def _windows(self, images: Tensor, batch: VideoBatch) -> list[Tensor]:
        networks = self.train.networks
        return time_windows(
            images,
            batch.flows,
            frames=networks.temporal.frames,
            scales=networks.temporal.scales,
            unit=networks.flow.scale,
        )

    # -- evaluation -------------------------------------------------------------------------------

    def render(self, batch: VideoBatch, networks: Networks) -> tuple[Tensor, Tensor]:
        """Frames [B, T, 3, H, W] and flows [B, T - 1, 2, H, W] of an evaluation."""
        video = self.make(batch, conditions(batch, self.train.images), networks)
        return video.frames, video.flows

    def evaluation_batches(self) -> Iterator[VideoBatch]:
        """This rank's share of the test sequences."""
        self._distances.begin()
        self._shown = None
        yield from self.data.evaluation()

    def evaluate(self, batch: VideoBatch, networks: Networks) -> dict[str, Tensor]:
        """Sums over the batch; the features of its frames stay here until `summarize`."""
        if self._shown is None:
            self._shown = batch.first(self.train.evaluation.pictures)
        made, flows = self.render(batch, networks)
        sums = self.compare(made.flatten(0, 1), batch.frames)
        if batch.flows is not None and batch.known is not None:
            sums |= consistency_sums(made, flows, batch.images, batch.flows, batch.known)
        if batch.points is not None:
            sums |= revisit_sums(made, batch.images, batch.points)
        if self.train.evaluation.round_trip:
            there_and_back, _ = self.render(batch.there_and_back(), networks)
            ends = there_and_back[:, 0].double() - there_and_back[:, -1].double()
            sums["round_trip"] = ends.abs().mean((1, 2, 3)).sum()
            sums["sequences"] = torch.tensor(float(len(batch)), dtype=torch.float64)
        return sums

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the class. A collective call."""
        found = self._distances.distances()
        counts = {
            "flow_error": "known",
            **dict.fromkeys(("warping_error", "warping_error_real"), "known"),
            **dict.fromkeys(("revisit_error", "revisit_error_real"), "revisited"),
            "round_trip": "sequences",
        }
        for name, value in sums.items():
            if name != "images" and name not in counts.values():
                found[name] = value / max(sums[counts.get(name, "images")], 1.0)
        return found

    def picture_rows(self, networks: Networks) -> Tensor:
        """For each sequence a row of inputs, one of generated and one of true frames, in the order
        of time. Of more than `PICTURE_FRAMES` frames, some that are evenly spread."""
        assert self._shown is not None
        shown = self._shown
        made, _ = self.render(shown, networks)
        inputs = show_condition(shown.frames, self.train.images).unflatten(0, made.shape[:2])
        rows = torch.stack([part.float() for part in (inputs, made, shown.images)], 1)
        length = rows.shape[2]
        at = torch.linspace(0, length - 1, min(length, PICTURE_FRAMES)).round().long()
        return rows[:, :, at].flatten(0, 1)

    # -- generation -------------------------------------------------------------------------------

    def generation_parts(self, request: Request) -> list[list[Path]]:
        """The sequences of this rank: the files of a folder in the order of their names."""
        return request.sequences()

    def frame_maker(self, request: Request, networks: Networks) -> FrameMaker:
        """What makes the frames of one sequence of `request`, one after another."""

        def make(file: Path, now: Tensor, images: Tensor | None, shown: Tensor | None) -> Tensor:
            made: Tensor = networks[GENERATOR](now, images, shown)[0]
            return made

        return make

    def generate(self, request: Request, networks: Networks) -> Iterator[tuple[Path, Tensor]]:
        """A frame from each file; each folder is a sequence. Only the newest frames are kept, so
        that a sequence may have any length."""
        previous = self.train.networks.previous
        for files in self.generation_parts(request):
            make = self.frame_maker(request, networks)
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
