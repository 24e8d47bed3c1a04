"""The keys of the data of video models. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpc_amp.config.values import Count, Natural, at_least
from hpc_amp.gan.data.config import SAMPLES, PairedData, SyntheticSamples
from hpc_amp.gan.video.folders import VideoFiles, scan_videos


@dataclass(kw_only=True, slots=True, frozen=True)
class SyntheticVideos(SyntheticSamples):
    """The size of a synthetic set of videos."""

    train: Count = 64
    """Training sequences."""
    test: Count = 16
    """Evaluation sequences."""
    frames: Annotated[int, at_least(2)] = 32
    """Frames of each sequence."""
    objects: Natural = 3
    """Shapes that move in each scene, besides those of the background."""
    speed: Annotated[int, at_least(1)] = 2
    """Largest movement of the camera, and of a shape, in pixels from frame to frame, in each
    direction."""


@dataclass(kw_only=True, slots=True, frozen=True)
class FrameCounts:
    """How many frames a sample has."""

    first: Annotated[int, at_least(2)] = 6
    """Frames of a training sample in the first epochs."""
    double_every: Natural = 20
    """Epochs after which the number of frames doubles. 0: it does not."""
    most: Annotated[int, at_least(2)] = 30
    """The largest number of frames of a training sample. The shortest training sequence is a limit,
    too: all samples of a step have the same length."""
    evaluation: Annotated[int, at_least(2)] = 10
    """Frames of each test sequence that an evaluation generates, from its first one on; fewer where
    the shortest test sequence has fewer."""

    def of_epoch(self, epoch: int) -> int:
        """The frames of a training sample in `epoch`, counted from 0."""
        doublings = epoch // self.double_every if self.double_every else 0
        # Not 2**doublings: epochs may be many.
        frames = self.first
        for _ in range(doublings):
            if frames >= self.most:
                break
            frames *= 2
        return min(frames, self.most)


@dataclass(kw_only=True, slots=True, frozen=True)
class VideoData(PairedData):
    """Sequences of frames, each frame with a label map or another image that it is made from."""

    frames: FrameCounts = field(default_factory=FrameCounts)
    """How many frames a sample has."""
    flow: Annotated[Literal["known", "none"], SAMPLES] = "known"
    """Reference flow from each frame to the one before it. `known`: that of the synthetic set, or
    of files (`train_flow/SEQUENCE/FRAME.flo`). `none`: there is no reference flow."""
    synthetic: Annotated[SyntheticVideos, SAMPLES] = field(default_factory=SyntheticVideos)
    """Size of the synthetic set, where it is used. It has `labels` labels, but at most 8."""

    def scan_sequences(self) -> tuple[VideoFiles, VideoFiles]:
        """The sequences below `root` for training and for evaluation. Raises FolderError."""
        return scan_videos(
            self.folder,
            self.inputs,
            instances=self.instances,
            reverse=self.reverse,
            flow=self.flow == "known",
        )

    def found(self) -> str:
        """What is below `root`, in words. Raises FolderError."""
        train, test = self.scan_sequences()
        return (
            f"{len(train.lengths):,} sequences of {sum(train.lengths):,} frames for training, "
            f"{len(test.lengths):,} of {sum(test.lengths):,} for evaluation"
        )
