"""Few-shot vid2vid as a task."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.batches import PairedBatch, condition
from hpc_amp.gan.data.synthetic import COLOURS, labels_of
from hpc_amp.gan.data.training import Prepared, prepare_references
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.losses import l1
from hpc_amp.gan.paired import read_inputs, show_condition
from hpc_amp.gan.task import GENERATOR, adam
from hpc_amp.gan.video.batches import conditions
from hpc_amp.gan.video.consistency import flow_loss, mask_loss
from hpc_amp.gan.video.references import ReferenceBatch
from hpc_amp.gan.video.task import MadeVideo, VideoGan
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.base import Losses, Networks, Phase
from hpc_amp.tasks.fs_vid2vid.config import FsVid2vidConfig
from hpc_amp.tasks.fs_vid2vid.networks import ReferenceGenerator

FINETUNING = "finetuning"
"""Name of the phase that trains a copy of the generator on the references of a sequence."""
LARGEST_MOVE = 8
"""The frame of a step of fine-tuning is a reference that was moved by up to 1 / so much of its
sides."""


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
        """The references [1, K, 3, H, W] of a sequence and their conditions."""
        references = self.read_references(self.references_of(files, request), request)
        return references.images[None], condition(references, self.train.images)[None]

    def references_of(self, files: Sequence[Path], request: Request) -> tuple[Path, ...]:
        """The images that the sequence of `files` is to look like. The folder `--style` has images
        in `B`, label maps or input images in `A` and instance maps in `inst`, as the data has; each
        in a folder with the name of the sequence, or in none, for all sequences. Raises
        DataError."""
        folder = _folder_of_references(request)
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
        return tuple(images)

    def read_references(self, images: Sequence[Path], request: Request) -> PairedBatch:
        """Some images of `request.style` with what they would be made from. Raises DataError."""
        folder, data = _folder_of_references(request), self.train.images
        partners = [_partner(each, folder) for each in images]
        of_references = dataclasses.replace(
            request, folder=folder / "A", instances=folder / "inst" if data.instances else None
        )
        inputs = read_inputs(partners, of_references, data, self.device)
        return dataclasses.replace(inputs, images=read_images(images, data, self.device))

    # -- fine-tuning ------------------------------------------------------------------------------

    def alike(self, request: Request) -> dict[tuple[Path, ...], Request]:
        """This rank's part of `request` by the references: for those of each sequence, a request of
        all sequences that have them. Raises DataError."""
        files: dict[tuple[Path, ...], list[Path]] = {}
        for sequence in self.generation_parts(request):
            files.setdefault(self.references_of(sequence, request), []).extend(sequence)
        return {
            references: dataclasses.replace(request, files=found, rank=0, ranks=1)
            for references, found in files.items()
        }

    def finetuning(self) -> Phase:
        """How a step of fine-tuning updates the generator. Reads the weights of the perceptual
        network. Raises ModelError."""
        losses, sides = self.train.fs_vid2vid.losses, self.train.adversarial
        self.prepare_perceptual(losses)
        loss = "l1" if self._perceptual is None else "perceptual"
        return Phase(FINETUNING, (GENERATOR,), (loss,), adam(sides, sides.generator_lr))

    def learning(self, networks: Networks) -> list[nn.Parameter]:
        """The weights that fine-tuning changes: those that draw. What finds the places in
        references and in earlier frames, attention and flows, stays as it is."""
        generator = networks[GENERATOR]
        assert isinstance(generator, ReferenceGenerator)
        parts = (generator.code, generator.head, generator.up, generator.last)
        return [parameter for part in parts for parameter in part.parameters()]

    def finetuning_batch(self, references: PairedBatch, stream: torch.Generator) -> ReferenceBatch:
        """What a step of fine-tuning gets: one of the `references` as the only frame, moved and,
        if the training mirrors images, perhaps mirrored; and all of them as its references."""

        def draw(below: int) -> int:
            return int(torch.randint(below, (), generator=stream))

        chosen, mirrored = draw(len(references)), bool(draw(2)) and self.train.images.flip
        moves = [
            draw(2 * reach + 1) - reach
            for reach in (side // LARGEST_MOVE for side in references.images.shape[2:])
        ]

        def frame(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            shown = values[chosen].flip(-1) if mirrored else values[chosen]
            return shown.roll(moves, (-2, -1))[None, None]

        def all_of(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[None]

        image = frame(references.images)
        assert image is not None
        return ReferenceBatch(
            images=image,
            seeds=references.seeds[:1],
            labels=frame(references.labels),
            instances=frame(references.instances),
            inputs=frame(references.inputs),
            references=references.images[None],
            reference_labels=all_of(references.labels),
            reference_instances=all_of(references.instances),
            reference_inputs=all_of(references.inputs),
        )

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        """Also that of `finetuning`: the perceptual loss, or `l1` where the run has none."""
        if phase != FINETUNING:
            yield from super().losses(phase, batch, networks)
            return
        video = self.make(batch, conditions(batch, self.train.images), networks)
        frames, real = video.frames.flatten(0, 1), batch.images.flatten(0, 1)
        if self._perceptual is None:
            yield {"l1": l1(frames, real)}
        else:
            yield {"perceptual": self._perceptual(frames, real)}


def _folder_of_references(request: Request) -> Path:
    """The folder that has `A` and `B`."""
    common = Path(os.path.commonpath(request.style))
    return next((each for each in (common, *common.parents) if (each / "B").is_dir()), common)


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
