"""The keys of `train` that COCO-FUNIT adds. Standard library only."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Count, section
from hpc_amp.gan.config import GanTrain, Halvings
from hpc_amp.gan.data.config import ClassData
from hpc_amp.tasks.funit.config import FunitAdversarial, FunitNetworks


@section(kw_only=True, slots=True, frozen=True)
class CocoFunitNetworks(FunitNetworks):
    """The networks, and the weights of the generator's losses."""

    bias_size: Annotated[Count, NETWORK] = 1024
    """Length of the universal style bias, a vector that is learned and the same for all images."""


@section(kw_only=True, slots=True, frozen=True)
class CocoFunitConfig(GanTrain):
    """FUNIT with a style that depends on the content image."""

    task: TaskName = "coco_funit"
    images: ClassData = field(default_factory=ClassData)
    """The images, in classes."""
    coco_funit: CocoFunitNetworks = field(default_factory=CocoFunitNetworks)
    """The networks, and the weights of the generator's losses."""
    adversarial: FunitAdversarial = field(default_factory=FunitAdversarial)

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        return self.coco_funit.halvings("coco_funit")

    def generation_options(self) -> Mapping[str, bool] | None:
        """Images of the class to draw."""
        return {"style": True}
