"""What has to be equal on all ranks that train one model, and would otherwise drift in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.scaler import LossScaler
from hpc_amp.amp.state import AmpState


def check_scales(scalers: Sequence[LossScaler], group: dist.ProcessGroup | None = None) -> None:
    """Compare the loss scales of all ranks of `group`, by default all there are; they call this
    together. Gradients at different scales would be averaged as if they were at one.

    Raises RuntimeError on every rank where the scales, or the clean steps before they grow, differ.
    Without a process group it does nothing.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    own = [(scaler.value, scaler.clean_steps) for scaler in scalers]
    ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, own, group=group)
    for rank, other in enumerate(ranks):
        if other != ranks[0]:
            raise RuntimeError(
                f"the loss scales of the ranks differ: rank 0 has {_text(ranks[0])}, rank {rank} "
                f"has {_text(other)}. Load the same amp state on every rank"
            )


def _text(scales: Sequence[tuple[float, int]]) -> str:
    return ", ".join(f"{value:g} ({steps} clean steps)" for value, steps in scales)


class FirstTraining:
    """Looks at each of `models` when it is first used after `initialize`.

    It has to be where it was. And where DistributedDataParallel trains it, all ranks come there
    together, with weights that DDP has made equal to its rank 0's: masters then follow these, and
    scales are compared, once. A hook on all modules is the public way to see DDP itself; it goes
    when every model has been trained once.
    """

    def __init__(self, models: Sequence[nn.Module], amp: AmpState) -> None:
        self._waiting = {model: _device_of(model) for model in models}
        self._amp = amp
        self._handle = register_module_forward_pre_hook(self._before_forward)
        amp.undo.callback(self._handle.remove)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        ddp = module if isinstance(module, DistributedDataParallel) else None
        # What DDP wraps may be a module around the model, such as that of torch.compile.
        inside = [module] if ddp is None else module.modules()
        found = [model for model in inside if model in self._waiting]
        for model in found:
            self._check_device(model)
        if not (module.training and torch.is_grad_enabled()):
            return
        if ddp is not None and found:
            self._make_equal(ddp)
        for model in found:
            del self._waiting[model]
        if not self._waiting:
            self._handle.remove()

    def _check_device(self, model: nn.Module) -> None:
        if _device_of(model) != self._waiting[model]:
            raise RuntimeError(
                f"a {type(model).__name__} was on {self._waiting[model]} when amp.initialize was "
                f"called, and is on {_device_of(model)} now: move models first"
            )

    def _make_equal(self, ddp: DistributedDataParallel) -> None:
        if not self._amp.replicas:
            check_scales(self._amp.scalers, ddp.process_group)
        if self._amp.masters is not None:
            self._amp.masters.share(ddp.module.parameters(), ddp.process_group)
        self._amp.replicas.append(ddp)


def _device_of(model: nn.Module) -> str:
    """The type of the device that a model is on, or begins on."""
    return next((parameter.device.type for parameter in model.parameters()), "no device")
