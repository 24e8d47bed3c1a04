"""The keys that the models of video share: data, networks, losses. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import Train
from hpc_amp.config.values import (
    NETWORK,
    Count,
    Natural,
    NonNegative,
    Section,
    Word,
    above,
    at_least,
    section,
)
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import CALLABLE, Halvings, SpectralName
from hpc_amp.gan.data.config import SAMPLES, PairedData, SyntheticSamples, check_batch
from hpc_amp.gan.data.folders import Scan
from hpc_amp.gan.paired_config import (
    PairedEvaluation,
    PairedLosses,
    PairedTrain,
    PatchJudges,
    perceptual_halvings,
)
from hpc_amp.gan.video.folders import VideoFiles, check_lengths, scan_videos

LEAST_FRAMES = 2, "each needs two"
"""How many frames any sequence needs, and why."""


@section(kw_only=True, slots=True, frozen=True)
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


@section(kw_only=True, slots=True, frozen=True)
class SyntheticIdentities(SyntheticVideos):
    """The size of a synthetic set of videos of identities."""

    identities: Count = 32
    """Identities of the training sequences, each in as many motions. Those of the evaluation are as
    many others, which the training never shows."""


@section(kw_only=True, slots=True, frozen=True)
class FrameCounts(Section):
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


def flow_source(value: str) -> None:
    """A check that a value is `known`, `dis`, `none` or `package.module:function`."""
    if value not in ("known", "dis", "none") and not CALLABLE.fullmatch(value):
        raise ValueError(f"{value!r} is none of known, dis, none and package.module:function")


REGIONS = ("face", "head", "hand_left", "hand_right")
"""Parts of people that key points show: a face and hands by those of their own, and a head by nose,
eyes and ears of the body."""


def known_regions(value: list[str]) -> None:
    """A check that a list has different names of `REGIONS`."""
    if not {*value} <= {*REGIONS} or len({*value}) != len(value):
        raise ValueError(f"{value} is not different ones of {', '.join(REGIONS)}")


@section(kw_only=True, slots=True, frozen=True)
class VideoData(PairedData):
    """Sequences of frames, each frame with a label map or another image that it is made from."""

    HAS_REFERENCES: ClassVar[bool] = False
    """Whether samples have images of other frames, too."""

    frames: FrameCounts = field(default_factory=FrameCounts)
    """How many frames a sample has."""
    flow: Annotated[Word, flow_source, SAMPLES] = "known"
    """Reference flow from each frame to the one before it. `known`: that of the synthetic set, or
    of files (`train_flow/SEQUENCE/FRAME.flo`). `dis`: estimated from the frames by OpenCV, when a
    sample is read. `package.module:function`: the same by a function of your own. `none`: there is
    no reference flow."""
    points: Annotated[Literal["known", "none"], SAMPLES] = "none"
    """The point of the scene that each pixel shows, with the same number in all frames. `known`:
    that of the synthetic set, or of files (`train_points/SEQUENCE/FRAME.npy`). With points, an
    evaluation measures places that are seen again."""
    regions: Annotated[list[str], known_regions, NETWORK] = field(default_factory=list)
    """Parts of people that get a discriminator each: `face`, `head`, `hand_left`, `hand_right`.
    They are found by key points in files (`train_poses/SEQUENCE/FRAME.json`, or `.txt`)."""
    synthetic: Annotated[SyntheticVideos, SAMPLES] = field(default_factory=SyntheticVideos)
    """Size of the synthetic set, where it is used. It has `labels` labels, but at most 8."""

    def scan(self, train: Train) -> Scan[VideoFiles]:
        """The sequences below `root`, which are enough for `train`. Raises DataError."""
        found = scan_videos(
            self.folder,
            self.inputs,
            instances=self.instances,
            reverse=self.reverse,
            flow=self.flow == "known",
            points=self.points == "known",
            poses=bool(self.regions),
            references=self.HAS_REFERENCES,
        )
        check_batch(found, train)
        of_train = train.least_frames if isinstance(train, VideoTrain) else LEAST_FRAMES
        check_lengths(found.train, *of_train)
        check_lengths(found.test, *LEAST_FRAMES)
        return found


@section(kw_only=True, slots=True, frozen=True)
class ReferenceData(VideoData):
    """Sequences of frames, each with images that show what the frames are to look like."""

    HAS_REFERENCES: ClassVar[bool] = True

    references: Count = 1
    """Reference images of a sample, other frames of its sequence. A training sample has random
    ones; an evaluation has those of the folder `test_ref_B`, with label maps in `test_ref_A`, or
    evenly spaced frames, the last one among them."""
    synthetic: Annotated[SyntheticIdentities, SAMPLES] = field(default_factory=SyntheticIdentities)
    """Size of the synthetic set, where it is used. It has `labels` labels, but at most 8; their
    colours and textures are those of an identity."""

    def scan(self, train: Train) -> Scan[VideoFiles]:
        """The sequences and references below `root`, which are enough for `train`. Raises
        DataError."""
        found = VideoData.scan(self, train)
        for files in (found.train, found.test.references or found.test):
            check_lengths(files, self.references, f"references={self.references} needs as many")
        return found

    def check_keys(self, train: Train) -> None:
        """Also whether synthetic sequences are long enough. Raises KeyProblem."""
        VideoData.check_keys(self, train)
        if self.name == "synthetic" and self.references > self.synthetic.frames:
            raise KeyProblem(
                "images.references", f"{self.references} is more than the frames of a sequence"
            )


@section(kw_only=True, slots=True, frozen=True)
class VideoLosses(PairedLosses):
    """Weights of the generator's losses. A loss of weight 0 is not computed."""

    temporal_gan: NonNegative = 1.0
    """Deceive the temporal discriminator."""
    temporal_features: NonNegative = 10.0
    """Feature matching of the temporal discriminator."""
    region_gan: NonNegative = 10.0
    """Deceive the discriminators of regions, where there are some."""
    region_features: NonNegative = 10.0
    """Feature matching of the discriminators of regions."""
    flow: NonNegative = 10.0
    """The L1 distance in pixels of the generator's flow from the reference flow. Needs
    reference flow."""
    warp: NonNegative = 10.0
    """The L1 distance of true frames from those before them, warped by the generator's flow."""
    mask: NonNegative = 0.0
    """The L1 distance of the mask from where the reference flow is not known. Needs
    reference flow. The paper has no such loss."""


@section(kw_only=True, slots=True, frozen=True)
class FlowNetwork(Section):
    """What estimates the flow from the frame before, and the mask: where a frame is not taken from
    the one before."""

    width: Annotated[Count, NETWORK] = 32
    """Channels of the first layer; each halving doubles them."""
    halvings: Annotated[Natural, NETWORK] = 3
    """Convolutions of stride 2."""
    blocks: Annotated[Natural, NETWORK] = 6
    """Residual blocks at the smallest size."""
    norm: Annotated[Literal["instance", "none"], NETWORK] = "instance"
    """Normalisation of the layers outside of the residual blocks."""
    correlation: Annotated[Natural, NETWORK] = 0
    """Show the network, too, how well the label map fits the one before when moved by up to so many
    pixels in each direction: (2 n + 1)^2 more channels. The flow then starts as a mean of these
    moves, weighted by how well they fit, and small movements are learned much faster. The paper
    has 0: none."""
    scale: Annotated[float, above(0), NETWORK] = 20.0
    """Pixels of flow for an output of 1: about the largest movement from frame to frame."""


@section(kw_only=True, slots=True, frozen=True)
class TemporalJudges(Section):
    """The temporal discriminator: one for frames that follow each other, one for frames farther
    apart, and so on. It sees the reference flow between them, too, where there is one."""

    scales: Annotated[Natural, NETWORK] = 2
    """Time scales: on scale i, frames are `frames`^i apart. 0: no temporal discriminator."""
    frames: Annotated[int, at_least(2), NETWORK] = 3
    """Frames that are judged together."""
    width: Annotated[Count, NETWORK] = 64
    """Channels after the first layer."""
    layers: Annotated[Count, NETWORK] = 3
    """Convolutions of stride 2."""


@section(kw_only=True, slots=True, frozen=True)
class NoTemporalJudges(TemporalJudges):
    """The temporal discriminator: one for frames that follow each other, one for frames farther
    apart, and so on. It sees the reference flow between them, too, where there is one."""

    scales: Annotated[Natural, NETWORK] = 0
    """Time scales: on scale i, frames are `frames`^i apart. 0, as in the paper: no temporal
    discriminator."""


@section(kw_only=True, slots=True, frozen=True)
class RegionJudges(Section):
    """The discriminators of regions, such as faces and hands: one for each of the `labels`, and one
    for each of `images.regions`. It sees the square around all pixels of its label, or around its
    key points, in each frame that has some."""

    labels: Annotated[list[int], NETWORK] = field(default_factory=list)
    """Labels of the regions, by their channels: with `images.ignore_label`, ids above it count one
    less. Needs `images.inputs: labels`."""
    size: Annotated[Count, NETWORK] = 64
    """Pixels of the sides to which each square is scaled. A square has at least a quarter of it."""
    width: Annotated[Count, NETWORK] = 64
    """Channels after the first layer."""
    layers: Annotated[Count, NETWORK] = 3
    """Convolutions of stride 2."""


@section(kw_only=True, slots=True, frozen=True)
class VideoNetworks(Section):
    """The networks, and the weights of the losses."""

    width: Annotated[Count, NETWORK] = 32
    """Channels of the generator's last block; each block before has twice as many, at most
    `most`."""
    most: Annotated[Count, NETWORK] = 1024
    """The largest number of channels."""
    stages: Annotated[Count, NETWORK] = 5
    """How often the generator halves earlier frames, and doubles the size again. The sides of an
    image must divide by 2^`stages`."""
    hidden: Annotated[Count, NETWORK] = 128
    """Channels between a map and the scale and shift of a normalisation."""
    previous: Annotated[Count, NETWORK] = 2
    """Earlier frames that a frame is made from."""
    warped_stages: Annotated[Natural, NETWORK] = 3
    """The generator's last blocks, so many, see the warped frame before in their normalisations,
    besides the label map."""
    spectral: Annotated[SpectralName, NETWORK] = "fp32"
    """Spectral normalisation of all networks, and the precision of its power iteration."""
    backprop_frames: Count = 1
    """Gradients go back over so many frames. With 1, each earlier frame is taken as it is."""
    checkpointing: bool = False
    """Keep only the frames of a sequence for the backward pass, and compute the rest again: takes
    less memory and more time, and changes nothing else."""
    flow: FlowNetwork = field(default_factory=FlowNetwork)
    """What estimates flow and mask."""
    discriminator: PatchJudges = field(default_factory=PatchJudges)
    """The discriminator of single frames."""
    temporal: TemporalJudges = field(default_factory=TemporalJudges)
    """The discriminator of frames that follow each other."""
    regions: RegionJudges = field(default_factory=RegionJudges)
    """The discriminators of regions, such as faces and hands."""
    losses: VideoLosses = field(default_factory=VideoLosses)
    """Weights of the generator's losses."""


@section(kw_only=True, slots=True, frozen=True)
class VideoEvaluation(PairedEvaluation):
    """What an evaluation measures and shows."""

    round_trip: bool = False
    """Also make each test sequence forwards and then backwards, and compare the last frame with the
    first one: twice as many frames more."""


@section(kw_only=True, slots=True, frozen=True)
class VideoTrain(PairedTrain):
    """What the configurations of models of video have."""

    section: ClassVar[str]
    """The key of the networks."""
    images: VideoData = field(default_factory=VideoData)
    """Where sequences come from."""
    evaluation: VideoEvaluation = field(default_factory=VideoEvaluation)

    @property
    def networks(self) -> VideoNetworks:
        """The networks of the model, and the weights of its losses."""
        found: VideoNetworks = getattr(self, self.section)
        return found

    @property
    def least_frames(self) -> tuple[int, str]:
        """How many frames each training sequence needs, and why."""
        temporal = self.networks.temporal
        if not temporal.scales:
            return LEAST_FRAMES
        return temporal.frames, (
            f"the temporal discriminator judges {temporal.frames} together: remove the sequence, "
            f"or set train.{self.section}.temporal.frames to less"
        )

    @property
    def regions(self) -> int:
        """How many regions have a discriminator."""
        return len(self.networks.regions.labels) + len(self.images.regions)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        networks, section = self.networks, self.section
        # Instance norms make a single pixel 0.
        yield Halvings(f"{section}.stages", networks.stages, least=2, whole=True)
        yield Halvings(f"{section}.flow.halvings", networks.flow.halvings, least=2, whole=True)
        yield networks.discriminator.halvings(f"{section}.discriminator")
        if networks.temporal.scales:
            yield Halvings(
                f"{section}.temporal.layers",
                networks.temporal.layers,
                least=3,
                fewer="fewer layers",
            )
        yield from perceptual_halvings(f"{section}.losses", networks.losses)

    def generation_options(self) -> Mapping[str, bool] | None:
        """Also frames a second, for videos."""
        return {**(PairedTrain.generation_options(self) or {}), "fps": False}

    def check_keys(self) -> None:
        """Also that there are enough frames, and the flow that losses need, and that networks can
        be compiled. Raises KeyProblem."""
        PairedTrain.check_keys(self)
        networks, section, frames = self.networks, self.section, self.images.frames
        if self.compile and networks.checkpointing:
            raise KeyProblem(
                "compile",
                f"torch does not compile the forward passes that {section}.checkpointing repeats",
                f"set train.{section}.checkpointing or train.compile to false",
            )
        least, _ = self.least_frames
        drawn = self.images.synthetic.frames
        if self.images.name == "synthetic" and drawn < least:
            raise KeyProblem(
                "images.synthetic.frames",
                f"{drawn} are less than the {least} that the temporal discriminator judges",
            )
        if min(frames.first, frames.most) < least:
            raise KeyProblem(
                "images.frames.first",
                f"the temporal discriminator judges {least} frames together, and a training sample "
                f"has {min(frames.first, frames.most)}",
                f"set train.images.frames.first to as many, or {section}.temporal.frames to less",
            )
        self._check_regions()
        for name in ("flow", "mask"):
            if getattr(networks.losses, name) and self.images.flow == "none":
                raise KeyProblem(
                    f"{section}.losses.{name}",
                    "it needs reference flow, and train.images.flow is none",
                    f"set train.{section}.losses.{name} to 0, or train.images.flow to known or dis",
                )

    def _check_regions(self) -> None:
        """That there are the labels and key points of regions, and that crops have the size that
        judging needs. Raises KeyProblem."""
        regions, key = self.networks.regions, f"{self.section}.regions"
        if not self.regions:
            return
        if self.images.regions and self.images.name == "synthetic":
            raise KeyProblem(
                "images.regions",
                "synthetic video has no people, whose key points it needs",
                "leave it out, or set train.images.name to folder",
            )
        if regions.labels and self.images.inputs != "labels":
            raise KeyProblem(
                f"{key}.labels",
                "regions are found by their labels, and train.images.inputs is images",
                f"leave train.{key}.labels out; train.images.regions finds some by key points",
            )
        for label in regions.labels:
            if not 0 <= label < self.images.labels:
                raise KeyProblem(
                    f"{key}.labels",
                    f"there is no label {label}: train.images.labels is {self.images.labels}",
                    "name labels from 0 on",
                )
        # As for images: the layer of stride 1 has one pixel less.
        if regions.size // 2**regions.layers < 3:
            raise KeyProblem(
                f"{key}.layers",
                f"crops of {regions.size} x {regions.size} pixels are too small for "
                f"{regions.layers} halvings",
                f"use fewer layers, or a larger train.{key}.size",
            )
