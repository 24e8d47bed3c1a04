"""Exponential moving average of weights (Polyak & Juditsky, 1992), which is evaluated instead of
the weights themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hpc_amp.amp.master_weights import copy_each


class WeightAverage:
    """Averaged copies of networks.

    `networks`: the networks that are trained, before they are cast to half precision. The copies
    keep the types that the networks have now, so the average of half-precision weights is fp32.
    `decay`: the part of the old average that an update keeps. In update n it is at most
    (1 + n) / (10 + n), so that the random initialisation is forgotten quickly.
    `value`: returns the value to average for a parameter or buffer of the networks, in the type of
    the copy; at opt level O2 that is the master weight.
    `start`: how many first updates copy the networks. Only those after them count in n.

    Attributes: `networks`, the copies by name; `updates`, how often they were updated.
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
            # Tied weights have several names, but are averaged once.
            pairs += {id(averaged[key]): (averaged[key], live[key]) for key in averaged}.values()
        self._value = value
        self._averaged = [mean for mean, _ in pairs if mean.is_floating_point()]
        self._live = [tensor for mean, tensor in pairs if mean.is_floating_point()]
        counters = [pair for pair in pairs if not pair[0].is_floating_point()]
        self._copied = [mean for mean, _ in counters], [tensor for _, tensor in counters]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights. Called after each step of an optimizer."""
        self.updates += 1
        averaged = self.updates - self.start
        decay = min(self.decay, (1 + averaged) / (10 + averaged)) if averaged > 0 else 0.0
        values = [self._value(tensor) for tensor in self._live]
        torch._foreach_lerp_(self._averaged, values, 1 - decay)
        copy_each(*self._copied)
