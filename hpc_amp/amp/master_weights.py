"""fp32 copies of half-precision weights, on which optimizers work: updates that are too small for
a half-precision weight add up in its copy (Micikevicius et al. 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpc_amp.amp.casting import HALF_TYPES


class MasterWeights:
    """The masters of half-precision parameters, at most one of each.

    The parameter is the master, rounded. An optimizer that steps on masters calls `update_models`
    afterwards.
    """

    def __init__(self) -> None:
        self._of: dict[Tensor, nn.Parameter] = {}
        self._before_cast: dict[Tensor, Tensor] = {}

    def __reduce__(self) -> tuple[type[MasterWeights], tuple[()]]:
        """A copy of a model, on disk or in memory, is not a copy of what its optimizer works on."""
        return MasterWeights, ()

    def get(self, parameter: Tensor) -> nn.Parameter | None:
        """The master of `parameter`, or None where it has none."""
        return self._of.get(parameter)

    def keep(self, parameter: nn.Parameter) -> None:
        """Call before `parameter` is cast: its master, if it gets one, is what it is now."""
        self._before_cast[parameter] = parameter.data

    def forget(self) -> None:
        """Call when all optimizers have their masters: what else was kept is not needed."""
        self._before_cast.clear()

    def add(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of a half-precision `parameter`, made where there is none yet."""
        if parameter not in self._of:
            weights = self._before_cast.get(parameter, parameter.detach())
            self._of[parameter] = nn.Parameter(weights.float(), parameter.requires_grad)
        return self._of[parameter]

    @torch.no_grad()
    def follow_models(self, parameters: Iterable[Tensor]) -> None:
        """Let the masters of `parameters` follow where these are no longer their masters rounded:
        somebody set the weights by hand, or DistributedDataParallel sent those of another rank."""
        for parameter in parameters:
            master = self._of[parameter]
            if not torch.equal(parameter, master.to(parameter.dtype)):
                master.copy_(parameter)

    @torch.no_grad()
    def update_models(self, parameters: Iterable[Tensor]) -> None:
        """Round the masters of `parameters` into them."""
        parameters = list(parameters)
        copy_each(parameters, [self._of[parameter] for parameter in parameters])

    @torch.no_grad()
    def share(self, parameters: Iterable[Tensor], group: dist.ProcessGroup) -> None:
        """Give all ranks of `group` the masters that its rank 0 has. They call this together."""
        parameters = [parameter for parameter in parameters if parameter in self._of]
        self.follow_models(parameters)
        source = dist.get_global_rank(group, 0)
        for parameter in parameters:
            dist.broadcast(self._of[parameter], source, group)


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, whatever their types; on a GPU with a few kernels for all
    where torch has that (2.2)."""
    if hasattr(torch, "_foreach_copy_") and targets:
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def fp32_value(tensor: Tensor, masters: MasterWeights | None) -> Tensor:
    """What `tensor` of a network is in fp32: its master, where it has one. It shares memory with
    that, and with a tensor that is fp32 already."""
    master = masters.get(tensor) if masters is not None else None
    return (tensor if master is None else master).detach().float()


def needs_master(parameter: Tensor) -> bool:
    """Whether an optimizer should not work on `parameter` itself.

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
