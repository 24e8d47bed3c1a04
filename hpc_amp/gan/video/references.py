"""Sequences with reference images, which show what the frames are to look like."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from hpc_amp.gan.data.reading import random_view, whole_view
from hpc_amp.gan.data.sets import Members, PairedParts, PairedSet, number_labels
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.config import ReferenceData
from hpc_amp.gan.video.flows import FlowSource, show_flow
from hpc_amp.gan.video.points import PointSource
from hpc_amp.gan.video.poses import PoseSource
from hpc_amp.gan.video.sets import VideoSet
from hpc_amp.gan.video.warp import inside


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceBatch(VideoBatch):
    """Sequences of T frames with K references each, which have the same inputs as frames have."""

    references: Tensor
    """float32 [B, K, 3, H, W] from -1 to 1."""
    reference_labels: Tensor | None = None
    """int64 [B, K, H, W], as `labels`."""
    reference_instances: Tensor | None = None
    """int64 [B, K, H, W]."""
    reference_inputs: Tensor | None = None
    """float32 [B, K, 3, H, W] from -1 to 1."""
    reference_flows: Tensor | None = None
    """Synthetic sets: the flow from each frame to each reference, float32 [B, T, K, 2, H, W]."""
    reference_known: Tensor | None = None
    """bool [B, T, K, H, W]: where that is known, the point is visible in the reference."""
    colours: Tensor | None = None
    """Synthetic sets: the number of the colour of each label, int64 [B, labels] (see
    `hpc_amp.gan.video.synthetic.DrawnIdentities`)."""

    @property
    def reference_frames(self) -> VideoBatch:
        """The references as sequences of K frames."""
        return VideoBatch(
            images=self.references,
            seeds=self.seeds,
            labels=self.reference_labels,
            instances=self.reference_instances,
            inputs=self.reference_inputs,
        )

    def reference_conditions(self, config: ReferenceData) -> Tensor:
        """What the references would be made from: float32 [B, K, C, H, W], as `conditions`."""
        return conditions(self.reference_frames, config)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of a synthetic set, by the number of a sequence."""

    flow_between: Callable[[int, int, int], tuple[Tensor, Tensor]]
    """From a frame to another one of the sequence, by their positions in it."""
    colours: Callable[[int], Tensor]


class ReferenceSet(VideoSet):
    """Sequences with `data.references` references each, which are other frames of the sequence, or
    in an evaluation the first of `given`, the references with their number for each sequence."""

    data: ReferenceData

    def __init__(
        self,
        parts: PairedParts,
        lengths: Sequence[int],
        data: ReferenceData,
        flows: FlowSource | None,
        points: PointSource | None,
        poses: PoseSource | None = None,
        *,
        given: tuple[PairedParts, Sequence[int]] | None = None,
        truth: Truth | None = None,
    ) -> None:
        super().__init__(parts, lengths, data, flows, points, poses)
        self.truth = truth
        self.sources = self.pairs
        self.given_starts: tuple[int, ...] | None = None
        if given is not None:
            self.sources = PairedSet(given[0], data)
            self.given_starts = (0, *itertools.accumulate(given[1]))

    def read(self, members: Sequence[int], seed: int, *, training: bool) -> Members:
        """The frames and the references of one sample, all of which show the same part. Raises
        DataError."""
        sample = dict(super().read(members, seed, training=training))
        sequence = members[0]
        chosen = self.references_of(members, seed, training=training)
        read = [self.sources.read((number,), seed, training=training) for number in chosen]
        for name in read[0]:
            parts = torch.stack([reference[name] for reference in read])
            if name in ("labels", "instances"):
                parts = parts.int()
            sample["references" if name == "images" else f"reference_{name}"] = parts
        if self.truth is not None:
            view = random_view(self.data, seed) if training else whole_view(self.data)
            start = self.starts[sequence]
            flows = [
                show_flow(*self.truth.flow_between(sequence, time - start, other - start), view)
                for time in self.frames_of(members, seed, training=training)
                for other in chosen
            ]
            shape = (-1, len(chosen))
            sample["reference_flows"] = torch.stack([flow for flow, _ in flows]).unflatten(0, shape)
            known = torch.stack([where for _, where in flows])
            sample["reference_known"] = known.unflatten(0, shape)
            sample["colours"] = self.truth.colours(sequence)
        return sample

    def references_of(self, members: Sequence[int], seed: int, *, training: bool) -> list[int]:
        """The numbers of the references of one sample among `sources`. If the sequence has enough
        frames, they are outside of the sample: random ones in training, evenly spaced ones in an
        evaluation."""
        sequence, wanted = members[0], self.data.references
        if self.given_starts is not None:
            first = self.given_starts[sequence]
            return list(range(first, first + wanted))
        whole = range(*self.starts[sequence : sequence + 2])
        shown = self.frames_of(members, seed, training=training)
        others = [number for number in whole if number not in shown]
        among = others if len(others) >= wanted else whole
        if training:
            return Random(f"{seed} references").sample(among, wanted)
        chosen = _evenly_spaced(whole, wanted)
        return _evenly_spaced(among, wanted) if set(chosen) & set(shown) else chosen

    def batch(self, members: Members, seeds: Tensor) -> ReferenceBatch:
        """The batch that tasks get."""
        frames = super().batch(members, seeds)
        labels, instances = members.get("reference_labels"), members.get("reference_instances")
        flows, known = members.get("reference_flows"), members.get("reference_known")
        if flows is not None and known is not None:
            known = known & inside(flows.flatten(0, 2)).view_as(known)
        return ReferenceBatch(
            **{each.name: getattr(frames, each.name) for each in dataclasses.fields(frames)},
            references=members["references"],
            reference_labels=None if labels is None else number_labels(labels, self.data),
            reference_instances=None if instances is None else instances.long(),
            reference_inputs=members.get("reference_inputs"),
            reference_flows=flows,
            reference_known=known,
            colours=members.get("colours"),
        )


def _evenly_spaced(numbers: Sequence[int], wanted: int) -> list[int]:
    """So many of the numbers, the last one among them."""
    return [numbers[(place + 1) * len(numbers) // wanted - 1] for place in range(wanted)]
