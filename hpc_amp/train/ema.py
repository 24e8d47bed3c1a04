"""Exponential moving average of weights (Polyak & Juditsky 1992), which is what is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averaged copies of networks, updated after each step that was taken.

    The decay of update n is at most (1 + n) / (10 + n), so that the average forgets the random
    initialisation quickly.
    """

    def __init__(self, networks: Mapping[str, nn.Module], decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.networks = {name: copy.deepcopy(network) for name, network in networks.items()}
        for network in self.networks.values():
            network.requires_grad_(False)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        for name, network in networks.items():
            averaged = self.networks[name].state_dict(keep_vars=True)
            live = network.state_dict(keep_vars=True)
            self._pairs += [(averaged[key], live[key]) for key in averaged]
        self._averaged = [mean for mean, _ in self._pairs if mean.is_floating_point()]
        self._live = [value for mean, value in self._pairs if mean.is_floating_point()]
        self._copied = [pair for pair in self._pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the networks as they are now."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._averaged, self._live, 1 - decay)
        for mean, value in self._copied:
            mean.copy_(value)
