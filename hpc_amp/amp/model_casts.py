"""Casts the weights of a model to another type. The model accepts and returns what an fp32 model
would, and so do its checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpc_amp.amp.casting import cast_floats
from hpc_amp.amp.master_weights import MasterWeights, fp32_value


def cast_model(
    model: nn.Module,
    dtype: torch.dtype,
    *,
    keep_batchnorm_fp32: bool,
    outputs: torch.dtype = torch.float32,
    masters: MasterWeights | None = None,
    undo: ExitStack,
) -> None:
    """Cast `model` to `dtype` in place, so that optimizers keep their parameters.

    From now on, the inputs of the model are cast to `dtype` and its results to `outputs`, and
    `state_dict` returns and `load_state_dict` accepts fp32 tensors.

    `keep_batchnorm_fp32`: leave batch norm layers that have weights in fp32.
    `masters`: checkpoints hold the master weights, which have more digits, so that a resume is
    exact bit by bit.
    `undo`: closing it reverts everything.

    Raises RuntimeError if the model or a part of it was compiled by torch.jit.script.
    """
    # In half precision, each part of the model needs a hook, so that its own checkpoint is fp32.
    _refuse_scripted([model] if dtype is torch.float32 else model.modules())
    for module in model.modules():
        if not (keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine):
            _cast_own_tensors(module, dtype, masters, undo)
        if dtype is not torch.float32:
            _keep_checkpoints_fp32(module, masters, undo)
    _pack_recurrent_weights(model)
    undo.callback(_pack_recurrent_weights, model)
    before = functools.partial(_cast_inputs, dtype)
    undo.callback(model.register_forward_pre_hook(before, with_kwargs=True).remove)
    cast_outputs(model, outputs, undo=undo)


def _refuse_scripted(modules: Iterable[nn.Module]) -> None:
    """Raise RuntimeError for a module made by torch.jit.script, because casts are hooks here."""
    if any(isinstance(module, torch.jit.RecursiveScriptModule) for module in modules):
        raise RuntimeError(
            "a model, or a part of it, was compiled by torch.jit.script and cannot have hooks, "
            "which amp needs at O0, O2 and O3 and for cast_model_outputs. Use O1 or "
            "torch.jit.trace, or enabled=False in place of O0"
        )


def cast_outputs(model: nn.Module, dtype: torch.dtype, *, undo: ExitStack) -> None:
    """Cast the results of `model` to `dtype` from now on. `undo`: closing it reverts that."""
    _refuse_scripted([model])
    after = functools.partial(_cast_results, dtype)
    undo.callback(model.register_forward_hook(after, prepend=True).remove)


# Casts are hooks, not a new `forward`: copies of the model (an average of the weights, replicas of
# DataParallel) copy the hooks as well, while a new `forward` would use the weights of the original.
def _cast_inputs(
    dtype: torch.dtype, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return cast_floats(dtype, args), cast_floats(dtype, kwargs)


def _cast_results(dtype: torch.dtype, model: nn.Module, args: Any, results: Any) -> Any:
    return cast_floats(dtype, results)


def _cast_own_tensors(
    module: nn.Module, dtype: torch.dtype, masters: MasterWeights | None, undo: ExitStack
) -> None:
    before = {}
    for name, tensor in _own_tensors(module).items():
        if tensor.is_floating_point() and tensor.dtype is not dtype:
            if masters is not None and isinstance(tensor, nn.Parameter):
                masters.keep(tensor)
            before[name] = tensor.dtype
            _set_dtype(tensor, dtype)
    undo.callback(_cast_back, module, before)


def _cast_back(module: nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    """Cast by name, because buffers are new tensors after an assignment or `model.to(...)`."""
    for name, tensor in _own_tensors(module).items():
        if name in dtypes and tensor.is_floating_point():
            _set_dtype(tensor, dtypes[name])


def _set_dtype(tensor: Tensor, dtype: torch.dtype) -> None:
    tensor.data = tensor.data.to(dtype)
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(dtype)


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of `module`, without those of its children, by name."""
    return {
        **dict(module.named_parameters(recurse=False, remove_duplicate=False)),
        **dict(module.named_buffers(recurse=False, remove_duplicate=False)),
    }


def _pack_recurrent_weights(model: nn.Module) -> None:
    """cuDNN needs the weights of an RNN in one block of memory, which a cast splits."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def _keep_checkpoints_fp32(
    module: nn.Module, masters: MasterWeights | None, undo: ExitStack
) -> None:
    """Hooks for the tensors of `module` itself. Its children have their own, so that checkpoints of
    parts of the model are fp32 as well."""
    save = functools.partial(_save_fp32, masters)
    undo.callback(module._register_state_dict_hook(save).remove)
    if masters is not None:
        load = functools.partial(_load_masters, masters)
        handle = module._register_load_state_dict_pre_hook(load, with_module=True)
        undo.callback(handle.remove)


def _save_fp32(
    masters: MasterWeights | None,
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
) -> None:
    for name, tensor in _own_tensors(module).items():
        if prefix + name in state and tensor.is_floating_point():
            state[prefix + name] = fp32_value(tensor, masters)


def _load_masters(
    masters: MasterWeights, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any
) -> None:
    for name, tensor in _own_tensors(module).items():
        master, saved = masters.get(tensor), state.get(prefix + name)
        if master is not None and saved is not None and saved.shape == master.shape:
            with torch.no_grad():
                master.copy_(saved)
