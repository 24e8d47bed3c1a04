"""The keys of `train` that few-shot vid2vid adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, Natural, NonNegative, Section, section
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import Halvings
from hpc_amp.gan.paired_config import PatchJudges
from hpc_amp.gan.video.config import (
    FlowNetwork,
    NoTemporalJudges,
    ReferenceData,
    VideoLosses,
    VideoNetworks,
    VideoTrain,
)


@section(kw_only=True, slots=True, frozen=True)
class FsVid2vidLosses(VideoLosses):
    """Weights of the generator's losses. A loss of weight 0 is not computed."""

    reference_flow: NonNegative = 10.0
    """The L1 distance in pixels of the flow to the reference from the known one, which synthetic
    sets have. Files have none: it must be 0 there."""
    reference_warp: NonNegative = 10.0
    """The L1 distance of true frames from the reference, warped by the generator's flow."""
    reference_mask: NonNegative = 0.0
    """The L1 distance of the mask of the warped reference from where the flow to the reference is
    not known, as `mask`."""


@section(kw_only=True, slots=True, frozen=True)
class ReferenceNetwork(Section):
    """What reads the references: their features, the attention that brings these to the places of a
    frame, and the code that the weights of normalisations are computed from."""

    width: Annotated[Count, NETWORK] = 32
    """Channels of the first layer; each halving doubles them."""
    halvings: Annotated[Natural, NETWORK] = 2
    """Convolutions of stride 2 before the attention. The attention compares each
    place of a frame with each place of all references: fewer halvings take much more memory."""
    code: Annotated[Count, NETWORK] = 256
    """Length of the code."""
    rank: Annotated[Count, NETWORK] = 16
    """Rank of the part of a convolution's weights that depends on the code."""
    blocks: Annotated[Count, NETWORK] = 4
    """The generator's last blocks, so many, have such weights in their normalisations."""

    @property
    def channels(self) -> int:
        """Channels of the features."""
        return int(self.width * 2**self.halvings)


@section(kw_only=True, slots=True, frozen=True)
class ReferenceJudges(PatchJudges):
    """The discriminator: one for patches of the image, one for patches of half the image, and so
    on."""

    width: Annotated[Count, NETWORK] = 32
    """Channels after the first layer; each further layer has twice as many, at most 512."""
    layers: Annotated[Count, NETWORK] = 4
    """Convolutions of stride 2; one of stride 1 follows. More of them judge larger patches."""


@section(kw_only=True, slots=True, frozen=True)
class FsVid2vidNetworks(VideoNetworks):
    """The networks, and the weights of the losses."""

    previous: Annotated[Count, NETWORK] = 1
    """Earlier frames that a frame is made from."""
    warped_stages: Annotated[Count, NETWORK] = 2
    """The generator's last blocks, so many, see the warped reference and the warped frame before in
    their normalisations, besides the label map."""
    references: ReferenceNetwork = field(default_factory=ReferenceNetwork)
    """What reads the references."""
    reference_flow: FlowNetwork = field(default_factory=FlowNetwork)
    """What estimates the flow from a reference, and the mask: where a frame is not taken from it.
    """
    discriminator: ReferenceJudges = field(default_factory=ReferenceJudges)
    """The discriminator of single frames. It sees a reference, too."""
    temporal: NoTemporalJudges = field(default_factory=NoTemporalJudges)
    """The discriminator of frames that follow each other."""
    losses: FsVid2vidLosses = field(default_factory=FsVid2vidLosses)
    """Weights of the generator's losses."""


@section(kw_only=True, slots=True, frozen=True)
class FsVid2vidConfig(VideoTrain):
    """Video from sequences of label maps or other images, which looks like a few references."""

    section: ClassVar[str] = "fs_vid2vid"
    task: TaskName = "fs_vid2vid"
    images: ReferenceData = field(default_factory=ReferenceData)
    """Where sequences and references come from."""
    fs_vid2vid: FsVid2vidNetworks = field(default_factory=FsVid2vidNetworks)
    """The networks, and the weights of the losses."""

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        yield from VideoTrain.halvings(self)
        flow, references = self.fs_vid2vid.reference_flow, self.fs_vid2vid.references
        yield Halvings("fs_vid2vid.reference_flow.halvings", flow.halvings, least=2, whole=True)
        yield Halvings("fs_vid2vid.references.halvings", references.halvings, least=2)

    def generation_options(self) -> Mapping[str, bool] | None:
        """The references, fine-tuning on them, and the maps of instances that the model was trained
        with."""
        return {"style": True, "finetune": False, **(VideoTrain.generation_options(self) or {})}

    def check_keys(self) -> None:
        """Also what belongs to references. Raises KeyProblem."""
        VideoTrain.check_keys(self)
        networks = self.fs_vid2vid
        for name in ("reference_flow", "reference_mask"):
            if getattr(networks.losses, name) and self.images.name != "synthetic":
                raise KeyProblem(
                    f"fs_vid2vid.losses.{name}",
                    "the flow to references is only known on the synthetic set",
                    f"set train.fs_vid2vid.losses.{name} to 0",
                )
