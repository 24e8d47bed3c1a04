"""The keys of `train` that vid2vid adds. Standard library only."""

from dataclasses import field
from typing import ClassVar

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import section
from hpc_amp.gan.config import LeastSquaresAdversarial
from hpc_amp.gan.video.config import VideoNetworks, VideoTrain


@section(kw_only=True, slots=True, frozen=True)
class Vid2vidConfig(VideoTrain):
    """Video from sequences of label maps or other images."""

    section: ClassVar[str] = "vid2vid"
    task: TaskName = "vid2vid"
    vid2vid: VideoNetworks = field(default_factory=VideoNetworks)
    """The networks, and the weights of the losses."""
    adversarial: LeastSquaresAdversarial = field(default_factory=LeastSquaresAdversarial)
