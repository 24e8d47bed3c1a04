"""The keys of `train` that world-consistent vid2vid adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, NonNegative, Section, section
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import Halvings, LeastSquaresAdversarial, SpectralName
from hpc_amp.gan.data.config import SAMPLES
from hpc_amp.gan.video.config import (
    NoTemporalJudges,
    VideoData,
    VideoLosses,
    VideoNetworks,
    VideoTrain,
)

FIRST_FRAME = "first_frame"
"""The network of first frames, and the key that describes it."""


@section(kw_only=True, slots=True, frozen=True)
class PointData(VideoData):
    """Sequences of frames, each frame with a label map or another image that it is made from, and
    with the points that it shows."""

    points: Annotated[Literal["known"], SAMPLES] = "known"
    """The point of the scene that each pixel shows, with the same number in all frames: that of the
    synthetic set, or of files (`train_points/SEQUENCE/FRAME.npy`)."""


@section(kw_only=True, slots=True, frozen=True)
class GuidedLosses(VideoLosses):
    """Weights of the generator's losses. A loss of weight 0 is not computed."""

    guidance: NonNegative = 20.0
    """The L1 distance of generated frames from the colours that their points had in earlier
    ones."""


@section(kw_only=True, slots=True, frozen=True)
class FirstFrame(Section):
    """The network of a run of `spade`, without a style encoder: keys as in its `train.spade`."""

    width: Annotated[Count, NETWORK] = 64
    """Channels of its last block."""
    stages: Annotated[Count, NETWORK] = 5
    """How often it doubles the size of the image."""
    hidden: Annotated[Count, NETWORK] = 128
    """Channels between the label map and the scale and shift of a normalisation."""
    norm: Annotated[Literal["batch", "instance"], NETWORK] = "batch"
    """Normalisation whose scale and shift come from the label map."""
    spectral: Annotated[SpectralName, NETWORK] = "fp32"
    """Spectral normalisation, and the precision of its power iteration."""


@section(kw_only=True, slots=True, frozen=True)
class GuidedNetworks(VideoNetworks):
    """The networks, and the weights of the losses."""

    warped_stages: Annotated[Count, NETWORK] = 3
    """The generator's last blocks, so many, see the warped frame before in their normalisations,
    besides the label map and the colours of points."""
    partial: Annotated[bool, NETWORK] = False
    """See the colours of points by partial convolutions, which leave out the pixels without one."""
    keep_colours: Annotated[bool, NETWORK] = False
    """Also put the colours of points into the frame, by a learned weight for each pixel. Not in the
    paper; a small network learns it much sooner than to draw the colours that it sees."""
    first_frame: FirstFrame | None = None
    """Let a network for single images make the first frame, whose weights `train.start_from` gives
    and which is not trained further. Default: the generator makes the first frame itself."""
    temporal: NoTemporalJudges = field(default_factory=NoTemporalJudges)
    """The discriminator of frames that follow each other."""
    losses: GuidedLosses = field(default_factory=GuidedLosses)
    """Weights of the generator's losses."""


@section(kw_only=True, slots=True, frozen=True)
class WcVid2vidConfig(VideoTrain):
    """Video from sequences of label maps or other images, and of points of the scene."""

    section: ClassVar[str] = "wc_vid2vid"
    task: TaskName = "wc_vid2vid"
    images: PointData = field(default_factory=PointData)
    """Where sequences come from."""
    wc_vid2vid: GuidedNetworks = field(default_factory=GuidedNetworks)
    """The networks, and the weights of the losses."""
    adversarial: LeastSquaresAdversarial = field(default_factory=LeastSquaresAdversarial)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        yield from VideoTrain.halvings(self)
        if (first := self.wc_vid2vid.first_frame) is not None:
            yield Halvings(f"wc_vid2vid.{FIRST_FRAME}.stages", first.stages, whole=True)

    def generation_options(self) -> Mapping[str, bool] | None:
        """Points, and maps of instances that the model was trained with."""
        return {**(VideoTrain.generation_options(self) or {}), "points": True}

    def check_keys(self) -> None:
        """Also that the network of first frames gets weights. Raises KeyProblem."""
        VideoTrain.check_keys(self)
        if self.compile:
            raise KeyProblem(
                "compile",
                "the number of points changes with each frame, and torch would compile for each",
                "set train.compile to false",
            )
        if self.wc_vid2vid.first_frame is not None and (
            self.start_from is None
            or FIRST_FRAME not in (self.start_from.networks or [FIRST_FRAME])
        ):
            raise KeyProblem(
                f"wc_vid2vid.{FIRST_FRAME}",
                "that network is not trained here, and nothing gives it weights",
                "name a run of spade in train.start_from.path, with networks=[first_frame] and "
                "names={'^generator\\.': first_frame.}",
            )
