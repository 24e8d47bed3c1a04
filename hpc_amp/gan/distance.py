"""How far sets of generated images are from sets of real ones, over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpc_amp.distributed.world import World
from hpc_amp.gan.config import FeatureDistance
from hpc_amp.gan.fid import TrainedDistances
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
    once at its end, on every rank: that is a collective call. Neither the number of ranks nor the
    precision of the run matters: random features and their sums are float64 and outside autocast,
    and `hpc_amp.gan.fid` says it of trained features.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        world: World,
        device: torch.device,
        channels: int = 3,
        *,
        fid: FeatureDistance,
        size: tuple[int, int],
    ) -> None:
        """`fid`: what to measure besides the distance of random features, of images whose height
        and width are `size`. Raises ModelError."""
        self.names = names
        self.world = world
        self._features = FeatureNetwork(channels).to(device)
        self._trained = TrainedDistances(fid, size, world, device) if fid.wanted else None
        self.begin()

    def begin(self) -> None:
        """Forget all images."""
        empty = self._features.no_moments()
        self._moments = torch.stack([empty] * (2 * len(self.names)))
        if self._trained is not None:
            self._trained.begin()

    def add_real(self, name: str, images: Tensor) -> None:
        """Add real images [B, 3, H, W] from -1 to 1 to the set `name`."""
        self._add(name, images, made=False)

    def add_made(self, name: str, images: Tensor) -> None:
        """Add generated images to the set `name`."""
        self._add(name, images, made=True)

    def _add(self, name: str, images: Tensor, *, made: bool) -> None:
        if not len(images):
            return
        self._moments[2 * self.names.index(name) + made] += moments(self._features(images))
        if self._trained is not None:
            self._trained.add(name, images, made=made)

    def distances(self, *, each: bool = True) -> dict[str, float]:
        """`frechet_random`, the Fréchet distance of random features (`hpc_amp.gan.frechet`), which
        is not FID, and what is wanted of `hpc_amp.gan.fid`.

        Of several sets, these are the means. With `each`, there are those of each set too, such as
        `frechet_random_NAME`. A collective call.
        """
        total = add_over_ranks(self._moments, self.world)
        of_sets = []
        for at, name in enumerate(self.names):
            of_set = {"frechet_random": frechet_distance(total[2 * at], total[2 * at + 1])}
            if self._trained is not None:
                of_set |= self._trained.distances(name)
            of_sets.append(of_set)
        found = {}
        for metric in of_sets[0]:
            values = [of_set[metric] for of_set in of_sets]
            found[metric] = sum(values) / len(values)
            if each and len(values) > 1:
                found |= {f"{metric}_{n}": v for n, v in zip(self.names, values, strict=True)}
        return found

    def protocol(self) -> dict[str, Any]:
        """How the newest distances were measured, apart from those of random features."""
        return {} if self._trained is None else {"fid": self._trained.protocol()}

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
