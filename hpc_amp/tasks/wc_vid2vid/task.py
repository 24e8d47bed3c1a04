"""World-consistent vid2vid as a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpc_amp.data.pictures import upright_size
from hpc_amp.gan.data.reading import whole_view
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import points_of
from hpc_amp.gan.task import GENERATOR
from hpc_amp.gan.video.batches import VideoBatch
from hpc_amp.gan.video.consistency import guidance_loss
from hpc_amp.gan.video.points import PointColours, read_points, show_points
from hpc_amp.gan.video.task import FrameMaker, MadeVideo, VideoGan
from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.tasks.wc_vid2vid.config import FIRST_FRAME, WcVid2vidConfig
from hpc_amp.tasks.wc_vid2vid.networks import FirstFrameGenerator, GuidedGenerator


@dataclasses.dataclass(frozen=True, slots=True)
class GuidedVideo(MadeVideo):
    """What the generator made of a batch."""

    guidance: Tensor
    """[B, T, 4, H, W]: what is known of the scene at each pixel, and where it is."""


class WcVid2vid(VideoGan):
    """A generator of sequences that sees how the points of the scene have looked so far."""

    train: WcVid2vidConfig

    def build_generator(self) -> nn.Module:
        """The network that makes sequences, with its first weights."""
        return GuidedGenerator(self.train.images.condition_channels, self.train.wc_vid2vid)

    def build_networks(self) -> dict[str, nn.Module]:
        """Generator and discriminators, and the network of first frames where there is one."""
        built, images = super().build_networks(), self.train.images
        if (config := self.train.wc_vid2vid.first_frame) is not None:
            built[FIRST_FRAME] = FirstFrameGenerator(images.condition_channels, images.size, config)
        return built

    def loss_weights(self) -> Mapping[str, float]:
        """Those of the section `losses`."""
        return {**super().loss_weights(), "guidance": self.train.wc_vid2vid.losses.guidance}

    def make(self, batch: VideoBatch, shown: Tensor, networks: Networks) -> MadeVideo:
        """What the generator makes of `batch`, whose `conditions` are `shown`."""
        assert batch.points is not None
        first = self._first_frame(shown[:, 0], networks)
        return GuidedVideo(*networks[GENERATOR](shown, batch.points, first=first))

    def sequence_losses(self, batch: VideoBatch, video: Any) -> Losses:
        """Those of flows, masks and guidance."""
        losses = dict(super().sequence_losses(batch, video))
        if self.loss_weights()["guidance"]:
            losses["guidance"] = guidance_loss(video.frames, video.guidance)
        return losses

    def _first_frame(self, shown: Tensor, networks: Networks) -> Tensor | None:
        """The first frame, where a network of its own makes it."""
        if FIRST_FRAME not in networks:
            return None
        with torch.no_grad():
            made: Tensor = networks[FIRST_FRAME](shown)[0]
        return made

    def frame_maker(
        self, files: Sequence[Path], request: Request, networks: Networks
    ) -> FrameMaker:
        """What makes the frames of the sequence of `files`, one after another. It keeps the
        colours of all points that the sequence has shown."""
        colours = [PointColours(self.device)]

        def make(file: Path, now: Tensor, images: Tensor | None, shown: Tensor | None) -> Tensor:
            points = self._read_points(file, request)[None, None].to(self.device)
            first = self._first_frame(now[:, 0], networks) if images is None else None
            made: Tensor = networks[GENERATOR](
                now, points, images, shown, first=first, colours=colours
            )[0]
            return made

        return make

    def _read_points(self, file: Path, request: Request) -> Tensor:
        assert request.points is not None  # see `WcVid2vidConfig.generation_options`
        width, height = upright_size(str(file))
        path = points_of(file, request.folder, request.points)
        return show_points(read_points(str(path), (height, width)), whole_view(self.train.images))
