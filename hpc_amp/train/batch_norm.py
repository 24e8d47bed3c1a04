"""The statistics of batch norms, estimated again from training batches.

The running statistics of a network follow its weights in training. They do not belong to the
average of these weights: a layer of the averaged network gets other inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpc_amp.distributed.collect import is_alone
from hpc_amp.distributed.world import World


class BatchNormEstimate:
    """A context in which forward passes of `networks` estimate the statistics of their batch norms.

    The networks are in evaluation mode. In the context, a batch norm normalises a batch by the
    mean and the variance of that batch over all ranks, as training does with one rank. At its end,
    the running statistics are those of all inputs of the layer, on all ranks: sums in float64 of
    moments in float32, whatever autocast says. A layer without input keeps its statistics, and so
    do all layers if the context ends with an error.

    Each rank has to make the same passes, because each input is a collective operation.
    """

    def __init__(self, networks: Iterable[nn.Module], world: World) -> None:
        self._world = world
        modules = (module for network in networks for module in network.modules())
        self.layers = [
            layer
            for layer in dict.fromkeys(modules)
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None
        ]
        """The batch norms with running statistics."""

    def __enter__(self) -> None:
        self._before = [_statistics(layer).clone() for layer in self.layers]
        self._moments = [
            torch.zeros(3, layer.num_features, dtype=torch.float64, device=before.device)
            for layer, before in zip(self.layers, self._before, strict=True)
        ]
        self._hooks = [
            layer.register_forward_pre_hook(partial(self._add_input, moments))
            for layer, moments in zip(self.layers, self._moments, strict=True)
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer, moments, before in zip(self.layers, self._moments, self._before, strict=True):
            if error is not None or moments[0, 0] == 0:
                _set_statistics(layer, before)
            else:
                # torch's running variance is the unbiased one, too.
                _set_statistics(layer, _mean_and_variance(moments, correction=1))

    def _add_input(self, moments: Tensor, layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        batch = _moments_of(inputs[0])
        if not is_alone(self._world):
            dist.all_reduce(batch)
        moments += batch
        # In evaluation mode, the layer normalises by these.
        _set_statistics(layer, _mean_and_variance(batch, correction=0))


def _moments_of(inputs: Tensor) -> Tensor:
    """Count, sum and sum of squares of each channel of [N, C, ...]: float64 [3, C]."""
    others = [dim for dim in range(inputs.ndim) if dim != 1]
    variance, mean = torch.var_mean(inputs.float(), dim=others, correction=0)
    variance, mean = variance.double(), mean.double()
    count = inputs.numel() // inputs.shape[1]
    return count * torch.stack((torch.ones_like(mean), mean, variance + mean.square()))


def _mean_and_variance(moments: Tensor, *, correction: int) -> Tensor:
    """Mean and variance [2, C] of `moments` [3, C]."""
    count, total, squares = moments
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    return torch.stack((mean, variance * count / (count - correction).clamp(min=1)))


def _statistics(layer: _BatchNorm) -> Tensor:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return torch.stack((layer.running_mean, layer.running_var))


def _set_statistics(layer: _BatchNorm, values: Tensor) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.copy_(values[0])
    layer.running_var.copy_(values[1])
