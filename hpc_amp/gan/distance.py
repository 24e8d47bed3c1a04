"""How far sets of generated images are from sets of real ones, over all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import (
    FeatureNetwork,
    add_over_ranks,
    frechet_distance,
    moments,
    relative_spread,
)


class SetDistances:
    """Distances of pairs of image sets, such as `a` and `b` of an unpaired translation.

    Call `begin` before an evaluation, `add_real` and `add_made` for each batch, and `distances`
    once at its end, on every rank: that is a collective call. Features and sums are float64 and
    outside autocast, so neither the number of ranks nor the precision of the run matters.
    """

    def __init__(
        self, names: tuple[str, ...], world: World, device: torch.device, channels: int = 3
    ) -> None:
        self.names = names
        self.world = world
        self._features = FeatureNetwork(channels).to(device)
        self.begin()

    def begin(self) -> None:
        """Forget all images."""
        empty = self._features.no_moments()
        self._moments = torch.stack([empty] * (2 * len(self.names)))

    def add_real(self, name: str, images: Tensor) -> None:
        """Add real images [B, 3, H, W] from -1 to 1 to the set `name`."""
        self._moments[2 * self.names.index(name)] += moments(self._features(images))

    def add_made(self, name: str, images: Tensor) -> None:
        """Add generated images to the set `name`."""
        self._moments[2 * self.names.index(name) + 1] += moments(self._features(images))

    def distances(self) -> dict[str, float]:
        """`frechet_random`, or `frechet_random_NAME` where there are several sets: the Fréchet
        distance of random features (`hpc_amp.gan.frechet`). Not FID."""
        total = add_over_ranks(self._moments, self.world)
        found = {
            name: frechet_distance(total[2 * at], total[2 * at + 1])
            for at, name in enumerate(self.names)
        }
        if len(found) == 1:
            return {"frechet_random": next(iter(found.values()))}
        return {f"frechet_random_{name}": value for name, value in found.items()}

    def spreads(self) -> dict[str, float]:
        """How much the generated images of each set differ from each other, relative to the real
        ones (`hpc_amp.gan.frechet.relative_spread`). Called after `distances`, which adds up the
        ranks."""
        return {
            name: relative_spread(self._moments[2 * at], self._moments[2 * at + 1])
            for at, name in enumerate(self.names)
        }

    def spread(self) -> float:
        """The same of the images of all sets together."""
        return relative_spread(self._moments[::2].sum(0), self._moments[1::2].sum(0))
