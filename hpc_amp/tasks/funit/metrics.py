"""How many translated images look like the class that they were translated into."""

from __future__ import annotations

import torch
from torch import Tensor

from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import FeatureNetwork, add_over_ranks


class NearestClass:
    """The share of generated images whose nearest class is the wanted one. A class is the mean of
    the features of its real images; features are those of a small random network, in float64.

    Call `begin` before an evaluation, `add` for each batch, and `share` at its end, on every rank:
    that is a collective call.
    """

    def __init__(self, classes: int, world: World, device: torch.device) -> None:
        self.classes = classes
        self.world = world
        self._features = FeatureNetwork(3).to(device)
        self.begin()

    def begin(self) -> None:
        """Forget all images."""
        size = len(self._features.no_moments())
        device = self._features.no_moments().device
        self._sums = torch.zeros(self.classes, size, dtype=torch.float64, device=device)
        self._made: list[Tensor] = []
        self._wanted: list[Tensor] = []

    def add(self, real: Tensor, made: Tensor, classes: Tensor) -> None:
        """Real and generated images [B, 3, H, W] from -1 to 1 of the same classes, int64 [B]."""
        found = self._features(real)
        extended = torch.cat([torch.ones_like(found[:, :1]), found], 1)
        self._sums.index_add_(0, classes, extended)
        self._made.append(self._features(made))
        self._wanted.append(classes)

    def share(self) -> float:
        """From 0 to 1. Chance is 1 / classes."""
        sums = add_over_ranks(self._sums.clone(), self.world)
        centres = sums[:, 1:] / sums[:, :1]
        hits = torch.zeros(2, dtype=torch.float64, device=sums.device)
        for made, wanted in zip(self._made, self._wanted, strict=True):
            distances = torch.cdist(made, centres)
            nearest = torch.where(distances.isfinite().all(1), distances.argmin(1), -1)
            hits += torch.stack([(nearest == wanted).sum(), torch.tensor(len(wanted)).to(nearest)])
        hit, total = add_over_ranks(hits, self.world).tolist()
        return float(hit / total)
