"""Checks of what has to be equal on all ranks that train one model and could differ unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from hpc_amp.amp.scaler import LossScaler
from hpc_amp.amp.state import AmpState


def check_scales(scalers: Sequence[LossScaler], group: dist.ProcessGroup | None = None) -> None:
    """Compare the loss scales of all ranks of `group`, by default of all ranks. A collective call;
    without a process group it does nothing.

    If scales differ, gradients at different scales would be averaged. Raises RuntimeError on every
    rank if the scales, or the numbers of clean steps since they last changed, differ.
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


@dataclass(frozen=True)
class _Untrained:
    """A model that has not been trained since `initialize`: its device at that time, and the hook
    that notices its use."""

    device: str
    amp: AmpState
    hook: RemovableHandle | None


# By model. Hooks are functions of this module that look up the model here, and not methods, because
# copies and pickled files of a model contain its hooks.
_untrained: dict[nn.Module, _Untrained] = {}
# The hooks of DistributedDataParallel around such models, until it trains.
_wrapped: WeakKeyDictionary[nn.Module, RemovableHandle] = WeakKeyDictionary()


def await_first_training(models: Sequence[nn.Module], amp: AmpState) -> None:
    """Check each of `models` whenever it is used, until it is first trained.

    A model has to be on the same device as at `initialize`. If DistributedDataParallel trains it,
    all ranks arrive there together, with weights that DDP has broadcast from rank 0. At that
    moment, masters are updated to these weights, and loss scales are compared, once.

    A hook on module registration, which notices that DDP takes a model, is the public way to find
    DDP itself. Hooks on all modules would be called for each of them in every pass.
    """
    for model in models:
        if model not in _untrained:
            scripted = isinstance(model, torch.jit.RecursiveScriptModule)  # which takes no hooks
            hook = None if scripted else model.register_forward_pre_hook(_before_model)
            _untrained[model] = _Untrained(_device_of(model), amp, hook)
            amp.undo.callback(_forget, model)
    amp.undo.callback(register_module_module_registration_hook(_notice_ddp).remove)


def _notice_ddp(parent: nn.Module, name: str, inside: nn.Module | None) -> None:
    """Hook on module registration: add a hook to a DDP that wraps one of the models."""
    # DDP may wrap a module around the model, such as that of torch.compile.
    if not isinstance(parent, DistributedDataParallel) or inside is None:
        return
    if any(module in _untrained for module in inside.modules()):
        # torch.compile of DDP would trace the exchange of the scales, and fail.
        hook = torch.compiler.disable(_before_ddp)
        _wrapped[parent] = parent.register_forward_pre_hook(hook)


def _before_model(model: nn.Module, _: Any) -> None:
    """Hook before a model's forward pass: check its device until it is trained."""
    if model in _untrained:
        _check_device(model)
        if model.training and torch.is_grad_enabled():
            _forget(model)


def _before_ddp(ddp: DistributedDataParallel, _: Any) -> None:
    """Hook before DDP's forward pass: at the first training step, make masters equal and compare
    scales, then remove all hooks."""
    found = [module for module in ddp.modules() if module in _untrained]
    for model in found:
        _check_device(model)
    if found and not (ddp.training and torch.is_grad_enabled()):
        return
    if found:
        _make_equal(ddp, _untrained[found[0]].amp)
    for model in found:
        _forget(model)
    hook = _wrapped.pop(ddp, None)
    if hook is not None:
        hook.remove()


def _forget(model: nn.Module) -> None:
    seen_to = _untrained.pop(model, None)
    if seen_to is not None and seen_to.hook is not None:
        seen_to.hook.remove()


def _check_device(model: nn.Module) -> None:
    before = _untrained[model].device
    if _device_of(model) != before:
        raise RuntimeError(
            f"a {type(model).__name__} was on {before} when amp.initialize was called, and is on "
            f"{_device_of(model)} now: move models first"
        )


def _make_equal(ddp: DistributedDataParallel, amp: AmpState) -> None:
    """Compare scales, once, and share the master weights of a model in DDP. A collective call."""
    if not amp.replicas:
        check_scales(amp.scalers, ddp.process_group)
    if amp.masters is not None:
        amp.masters.share(ddp.module.parameters(), ddp.process_group)
    amp.replicas.append(ddp)


def _device_of(model: nn.Module) -> str:
    """The type of the device of a model's first parameter."""
    return next((parameter.device.type for parameter in model.parameters()), "no device")
