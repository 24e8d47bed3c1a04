"""The keys of `train` that UNIT adds. Standard library only."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated

from hpc_amp.config.schema import TaskName
from hpc_amp.config.values import NETWORK, Natural, NonNegative, section
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.config import Halvings
from hpc_amp.gan.unpaired_config import Translation, UnpairedTrain


@section(kw_only=True, slots=True, frozen=True)
class UnitNetworks(Translation):
    """The networks, and the weights of the losses. Each loss is a sum over both domains."""

    shared: Annotated[Natural, NETWORK] = 1
    """Residual blocks that both domains have in common: the last ones of the encoders, and the
    first ones of the decoders. At most `blocks`."""
    cycle: NonNegative = 10.0
    """Weight of the L1 distance of an image to its translation there and back."""
    kl: NonNegative = 0.01
    """Weight of the divergence of the latent distribution of an image from the normal distribution,
    for each latent number."""
    kl_cycle: NonNegative = 0.01
    """The same for the latent distribution of a translation."""


@section(kw_only=True, slots=True, frozen=True)
class UnitConfig(UnpairedTrain):
    """UNIT: translation between two domains."""

    task: TaskName = "unit"
    unit: UnitNetworks = field(default_factory=UnitNetworks)
    """The networks, and the weights of the losses."""

    def halvings(self) -> Iterator[Halvings]:
        """Those of all networks."""
        return self.unit.halvings("unit")

    def check_keys(self) -> None:
        """Also that there are blocks to share."""
        UnpairedTrain.check_keys(self)
        if self.unit.shared > self.unit.blocks:
            raise KeyProblem(
                "unit.shared", f"{self.unit.shared} is more than blocks, {self.unit.blocks}"
            )
