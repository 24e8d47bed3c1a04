"""Few-shot vid2vid as a task."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.batches import condition
from hpc_amp.gan.data.synthetic import COLOURS, labels_of
from hpc_amp.gan.data.training import Prepared, prepare_references
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.losses import l1
from hpc_amp.gan.paired import read_inputs, show_condition
from hpc_amp.gan.task import GENERATOR
from hpc_amp.gan.video.consistency import flow_loss, mask_loss
from hpc_amp.gan.video.references import ReferenceBatch
from hpc_amp.gan.video.task import MadeVideo, VideoGan
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.tasks.fs_vid2vid.config import FsVid2vidConfig
from hpc_amp.tasks.fs_vid2vid.networks import ReferenceGenerator


@dataclasses.dataclass(frozen=True, slots=True)
class MadeFromReferences(MadeVideo):
    """What the generator made of a batch."""

    reference_flows: Tensor
    """[B, T, 2, H, W] in pixels, from each frame to a reference."""
    reference_masks: Tensor
    """[B, T, 1, H, W]: 1 where a frame is not taken from the reference."""
    chosen: Tensor
    """int64 [B, T]: the number of that reference."""


class FsVid2vid(VideoGan):
    """A generator of sequences that look like their references, against a discriminator of frames
    beside a reference.

    Metrics: those of `VideoGan` but `label_agreement`; on the synthetic set `identity_agreement`:
    of the pixels whose label a reference shows, the share that look like the colour which the label
    has in this identity.
    """

    counts: ClassVar[Mapping[str, str]] = {**VideoGan.counts, "identity_agreement": "identified"}
    train: FsVid2vidConfig

    def build_generator(self) -> nn.Module:
        """The network that makes sequences, with its first weights."""
        return ReferenceGenerator(self.train.images.condition_channels, self.train.fs_vid2vid)

    def prepare_sequences(self) -> Prepared[Any]:
        """Find or draw the sequences and their references."""
        return prepare_references(self.train.images, self.train, self.world, self.device)

    def make(self, batch: Any, shown: Tensor, networks: Networks) -> MadeFromReferences:
        """What the generator makes of `batch`, whose `conditions` are `shown`."""
        of_references = batch.reference_conditions(self.train.images)
        made = networks[GENERATOR](shown, None, None, batch.references, of_references)
        return MadeFromReferences(*made)

    @property
    def judged_channels(self) -> int:
        """Channels of a condition, and of a reference with its own."""
        return 2 * self.train.images.condition_channels + 3

    def beside(self, batch: Any, shown: Tensor) -> Tensor:
        """The condition of each frame, and the first reference with its own."""
        of_reference = batch.reference_conditions(self.train.images)[:, :1]
        parts = torch.cat((batch.references[:, :1], of_reference), 2)
        parts = parts.expand(-1, shown.shape[1], -1, -1, -1)
        return torch.cat((shown, parts), 2).flatten(0, 1)

    def loss_weights(self) -> Mapping[str, float]:
        """Those of the section `losses`."""
        losses = self.train.fs_vid2vid.losses
        return {
            **super().loss_weights(),
            "reference_flow": losses.reference_flow,
            "reference_warp": losses.reference_warp,
            "reference_mask": losses.reference_mask,
        }

    def sequence_losses(self, batch: Any, video: Any) -> Losses:
        """Those of flows and masks, also to the references."""
        weights = self.loss_weights()
        losses = dict(super().sequence_losses(batch, video))
        if weights["reference_warp"]:
            samples = torch.arange(len(video.chosen), device=video.chosen.device)[:, None]
            references = batch.references[samples, video.chosen]
            warped = warp(references.flatten(0, 1), video.reference_flows.flatten(0, 1))
            losses["reference_warp"] = l1(warped, batch.images.flatten(0, 1))
        if weights["reference_flow"] or weights["reference_mask"]:
            known = _of_chosen(batch.reference_known, video.chosen)
            if weights["reference_flow"]:
                flows = _of_chosen(batch.reference_flows, video.chosen)
                losses["reference_flow"] = flow_loss(video.reference_flows, flows, known)
            if weights["reference_mask"]:
                losses["reference_mask"] = mask_loss(video.reference_masks, known)
        return losses

    # -- evaluation -------------------------------------------------------------------------------

    def video_sums(self, made: Tensor, flows: Tensor, batch: Any) -> dict[str, Tensor]:
        """Those of `VideoGan`, and those of `identity_agreement`."""
        sums = super().video_sums(made, flows, batch)
        if batch.colours is not None and batch.labels is not None:
            labels = batch.labels.flatten(1)
            shown = torch.zeros_like(batch.colours)
            shown.scatter_(1, batch.reference_labels.flatten(1), 1)
            identified = shown.gather(1, labels).double()
            looks_like = labels_of(made.flatten(0, 1), len(COLOURS)).view_as(batch.labels)
            right = looks_like.flatten(1) == batch.colours.long().gather(1, labels)
            sums["identity_agreement"] = (right * identified).sum()
            sums["identified"] = identified.sum()
        return sums

    def picture_rows(self, networks: Networks) -> Tensor:
        """As of `VideoGan`, with a first column of references: the input of the first reference,
        and twice its image."""
        rows = super().picture_rows(networks)
        assert isinstance(self._shown, ReferenceBatch)
        shown, images = self._shown, self.train.images
        inputs = show_condition(shown.reference_frames.frames, images)
        inputs = inputs.unflatten(0, shown.references.shape[:2])[:, 0]
        image = shown.references[:, 0]
        first = torch.stack((inputs.float(), image, image), 1).flatten(0, 1)
        return torch.cat((first[:, None], rows), 1)

    # -- generation -------------------------------------------------------------------------------

    def generation_context(self, files: Sequence[Path], request: Request) -> tuple[Tensor, ...]:
        """The references [1, K, 3, H, W] of a sequence and their conditions. The folder `--style`
        has images in `B`, label maps or input images in `A` and instance maps in `inst`, as the
        data has; each in a folder with the name of the sequence, or in none, for all sequences."""
        folder = Path(os.path.commonpath(request.style))
        sequence = files[0].parent.relative_to(request.folder)
        images = [each for each in request.style if each.parent == folder / "B" / sequence]
        if not images:
            images = [each for each in request.style if each.parent == folder / "B"]
        if not images:
            raise DataError(
                f"there are no references for {files[0].parent}: put images into "
                f"{folder / 'B' / sequence} and what they are made from into "
                f"{folder / 'A' / sequence}"
            )
        data = self.train.images
        partners = [_partner(each, folder) for each in images]
        of_references = dataclasses.replace(
            request, folder=folder / "A", instances=folder / "inst" if data.instances else None
        )
        batch = read_inputs(partners, of_references, data, self.device)
        references = read_images(images, data, self.device)
        return references[None], condition(batch, data)[None]


def _partner(image: Path, folder: Path) -> Path:
    """What a reference is made from."""
    partner = folder / "A" / image.relative_to(folder / "B")
    for found in (partner, partner.with_suffix(".png")):
        if found.is_file():
            return found
    raise DataError(f"there is no {partner} for the reference {image}")


def _of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """Of values [B, T, K, ...] of each reference those of the `chosen` one [B, T]: [B, T, ...]."""
    samples, frames = chosen.shape
    at = torch.arange(samples, device=chosen.device)[:, None]
    return values[at, torch.arange(frames, device=chosen.device), chosen]
