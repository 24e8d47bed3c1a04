"""fp32 copies of half-precision weights, which optimizers work on. Updates that are too small for a
half-precision weight add up in its copy (Micikevicius et al., 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpc_amp.amp.casting import HALF_TYPES


class MasterWeights:
    """The master weights of half-precision parameters, at most one for each.

    A parameter is its master, rounded. Call `update_models` after a step on masters.
    """

    def __init__(self) -> None:
        self._of: dict[Tensor, nn.Parameter] = {}
        self._before_cast: dict[Tensor, Tensor] = {}

    def __reduce__(self) -> tuple[type[MasterWeights], tuple[()]]:
        """Copies of a model hold this object in their hooks, but have no masters of their own."""
        return MasterWeights, ()

    def get(self, parameter: Tensor) -> nn.Parameter | None:
        """The master of `parameter`, or None."""
        return self._of.get(parameter)

    def keep(self, parameter: nn.Parameter) -> None:
        """Keep the present values for the master of `parameter`. Called before it is cast."""
        self._before_cast[parameter] = parameter.data

    def forget(self) -> None:
        """Free the values that `keep` kept. Called when all optimizers have their masters."""
        self._before_cast.clear()

    def add(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of a half-precision `parameter`. The first call creates it."""
        if parameter not in self._of:
            weights = self._before_cast.get(parameter, parameter.detach())
            self._of[parameter] = nn.Parameter(weights.float(), parameter.requires_grad)
        return self._of[parameter]

    @torch.no_grad()
    def follow_models(self, parameters: Iterable[Tensor]) -> None:
        """Copy each of `parameters` that is no longer its master, rounded, to its master: the user
        has changed the weights, or DistributedDataParallel has broadcast those of another rank."""
        for parameter in parameters:
            master = self._of[parameter]
            if not torch.equal(parameter, master.to(parameter.dtype)):
                master.copy_(parameter)

    @torch.no_grad()
    def update_models(self, parameters: Iterable[Tensor]) -> None:
        """Round the masters of `parameters` into the parameters."""
        parameters = list(parameters)
        copy_each(parameters, [self._of[parameter] for parameter in parameters])

    @torch.no_grad()
    def share(self, parameters: Iterable[Tensor], group: dist.ProcessGroup) -> None:
        """Broadcast the masters of rank 0 of `group` to its other ranks. A collective call."""
        parameters = [parameter for parameter in parameters if parameter in self._of]
        self.follow_models(parameters)
        source = dist.get_global_rank(group, 0)
        for parameter in parameters:
            dist.broadcast(self._of[parameter], source, group)


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, of any type. With torch 2.2 or newer, a GPU needs only a few
    kernels for all of them."""
    if hasattr(torch, "_foreach_copy_") and targets:
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def fp32_value(tensor: Tensor, masters: MasterWeights | None) -> Tensor:
    """The fp32 value of a parameter or buffer: its master, if it has one. The result shares memory
    with the master, and with a tensor that is fp32 already."""
    master = masters.get(tensor) if masters is not None else None
    return (tensor if master is None else master).detach().float()


def needs_master(parameter: Tensor) -> bool:
    """Whether `parameter` needs a master, because it is in half precision.

    Raises TypeError for a type that amp cannot train.
    """
    if parameter.dtype is torch.float32:
        return False
    if parameter.dtype in HALF_TYPES:
        return True
    raise TypeError(
        f"an optimizer has a parameter of type {parameter.dtype}; with master weights it may be "
        "float32, float16 or bfloat16"
    )
