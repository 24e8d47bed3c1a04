"""Exponential moving average of weights (Polyak & Juditsky 1992), which is what is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averaged copies of networks, updated after each step that was taken.

    Make it before the weights are cast to half precision: the copies stay as the networks are now,
    so an average of half-precision weights is fp32 and computes in fp32. `value` gives what is
    averaged of a parameter or buffer of the networks, in the type of the copy.

    The first `start` updates copy the networks. The decay of the n-th one after those is at most
    (1 + n) / (10 + n), so that the average forgets the weights that it began with quickly.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        decay: float,
        value: Callable[[Tensor], Tensor],
        start: int = 0,
    ) -> None:
        self.decay = decay
        self.start = start
        self.updates = 0
        self.networks = {name: copy.deepcopy(network) for name, network in networks.items()}
        for network in self.networks.values():
            network.requires_grad_(False)
        pairs: list[tuple[Tensor, Tensor]] = []
        for name, network in networks.items():
            averaged = self.networks[name].state_dict(keep_vars=True)
            live = network.state_dict(keep_vars=True)
            # Weights that are tied have several names, and are averaged once.
            pairs += {id(averaged[key]): (averaged[key], live[key]) for key in averaged}.values()
        self._value = value
        self._averaged = [mean for mean, _ in pairs if mean.is_floating_point()]
        self._live = [tensor for mean, tensor in pairs if mean.is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the networks as they are now."""
        self.updates += 1
        averaged = self.updates - self.start
        decay = min(self.decay, (1 + averaged) / (10 + averaged)) if averaged > 0 else 0.0
        values = [self._value(tensor) for tensor in self._live]
        torch._foreach_lerp_(self._averaged, values, 1 - decay)
        for mean, tensor in self._copied:
            mean.copy_(tensor)
