"""Sets of sequences: which frames make up a sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.reading import View, random_view, whole_view
from hpc_amp.gan.data.sets import Members, PairedParts, PairedSet, SampleSet, number_labels
from hpc_amp.gan.video.batches import VideoBatch
from hpc_amp.gan.video.config import VideoData
from hpc_amp.gan.video.flows import FlowSource, show_flow
from hpc_amp.gan.video.points import PointSource, show_points
from hpc_amp.gan.video.poses import PoseSource
from hpc_amp.gan.video.regions import squares_of_points
from hpc_amp.gan.video.warp import inside


class VideoSet(SampleSet[VideoBatch]):
    """Sequences of frames. A sample of training is a part of a sequence; all samples of an epoch
    are equally long, and the length depends on the epoch alone. A sample of an evaluation is the
    beginning of a sequence.

    `parts` has the members of all frames, from sequence to sequence, and `lengths` the number of
    frames of each sequence.
    """

    def __init__(
        self,
        parts: PairedParts,
        lengths: Sequence[int],
        data: VideoData,
        flows: FlowSource | None,
        points: PointSource | None,
        poses: PoseSource | None = None,
    ) -> None:
        super().__init__(len(lengths))
        self.pairs = PairedSet(parts, data)
        self.lengths = tuple(lengths)
        self.flows = flows
        self.points = points
        self.poses = poses
        self.data = data
        self.starts = (0, *itertools.accumulate(lengths))

    def order(self, seed: int, epoch: int) -> Tensor:
        """The sequence of each sample, and how many frames it has: int64 [samples, 2]."""
        frames = min(self.data.frames.of_epoch(epoch), *self.lengths)
        return self._with_length(super().order(seed, epoch), frames)

    def fixed_order(self) -> Tensor:
        """The same for an evaluation."""
        frames = min(self.data.frames.evaluation, *self.lengths)
        return self._with_length(super().fixed_order(), frames)

    def _with_length(self, order: Tensor, frames: int) -> Tensor:
        return torch.cat((order, torch.full_like(order, frames)), 1)

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """The frames of one sample, all of which show the same part. Raises DataError."""
        numbers = self.frames_of(members, seed, training=training)
        shown = [self.pairs.read((number,), seed, training=training) for number in numbers]
        sample = {name: torch.stack([frame[name] for frame in shown]) for name in shown[0]}
        for name in ("labels", "instances"):
            if name in sample:
                sample[name] = sample[name].int()  # bytes are pixels of images
        view = random_view(self.data, seed) if training else whole_view(self.data)
        if self.points is not None:
            sample["points"] = torch.stack(
                [show_points(self._points(number), view) for number in numbers]
            )
        if self.poses is not None:
            sample["regions"] = torch.stack([self._regions(number, view) for number in numbers])
        if self.flows is not None:
            flows = [show_flow(*self._flow(number), view) for number in numbers[1:]]
            sample["flows"] = torch.stack([flow for flow, _ in flows])
            sample["known"] = torch.stack([known for _, known in flows])
        return sample

    def frames_of(self, members: Sequence[int], seed: int, *, training: bool) -> range:
        """The numbers of the frames of one sample."""
        sequence, frames = members
        first = self.starts[sequence]
        if training:
            first += Random(f"{seed} start").randrange(self.lengths[sequence] - frames + 1)
        return range(first, first + frames)

    def _points(self, number: int) -> Tensor:
        assert self.points is not None
        width, height = self.pairs.parts.images.size(number)
        return self.points(number, (height, width))

    def _regions(self, number: int, view: View) -> Tensor:
        assert self.poses is not None
        width, height = self.pairs.parts.images.size(number)
        return squares_of_points(self.poses(number), self.data.regions, width, height, view)

    def _flow(self, number: int) -> tuple[Tensor, Tensor]:
        assert self.flows is not None
        flow, known = self.flows(number)
        image = self.pairs.parts.images
        width, height = image.size(number)
        if flow.shape[1:] != (height, width):
            raise DataError(
                f"{image.name(number)} has {width} x {height} pixels, and its flow "
                f"{flow.shape[2]} x {flow.shape[1]}"
            )
        return flow, known

    def batch(self, members: Members, seeds: Tensor) -> VideoBatch:
        """The batch that tasks get."""
        labels, instances = members.get("labels"), members.get("instances")
        flows, known = members.get("flows"), members.get("known")
        if flows is not None and known is not None:
            leads_inside = inside(flows.flatten(0, 1)).unflatten(0, known.shape[:2])
            known = known & leads_inside
        return VideoBatch(
            images=members["images"],
            seeds=seeds,
            labels=None if labels is None else number_labels(labels, self.data),
            instances=None if instances is None else instances.long(),
            inputs=members.get("inputs"),
            flows=flows,
            known=known,
            points=members.get("points"),
            regions=members.get("regions"),
        )
