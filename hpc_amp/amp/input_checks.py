"""Checks of the models and optimizers that `amp.initialize` gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from hpc_amp.amp.casting import HALF_TYPES

_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
_OPTIMIZER_METHODS = (
    "param_groups", "state", "step", "zero_grad", "add_param_group", "state_dict", "load_state_dict"
)  # fmt: skip


def models_of(value: Any) -> list[nn.Module]:
    """A model or a list of models, as a list. Raises TypeError for anything else, and RuntimeError
    for a model that is already wrapped or in half precision."""
    models = _as_list(value, "models", lambda model: isinstance(model, nn.Module))
    for model in models:
        _check_model(model)
    return models


def optimizers_of(value: Any) -> list[Any]:
    """An optimizer, a list of optimizers or None, as a list. A wrapper that has the interface of an
    optimizer (LARC) is accepted. Raises TypeError for anything else, and RuntimeError for an
    optimizer that occurs twice or that scales losses itself."""
    optimizers = [] if value is None else _as_list(value, "optimizers", _can_optimize)
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise RuntimeError("an optimizer is in the list twice")
    for optimizer in optimizers:
        if type(optimizer).__name__ == "FP16_Optimizer":
            raise RuntimeError("amp replaces FP16_Optimizer: pass the optimizer that it wraps")
    return optimizers


def _as_list(value: Any, what: str, fits: Callable[[Any], bool]) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not fits(item):
            raise TypeError(f"{what} must be one or a list, but there is a {type(item).__name__}")
    return items


def _can_optimize(optimizer: Any) -> bool:
    return all(hasattr(optimizer, name) for name in _OPTIMIZER_METHODS)


def _check_model(model: nn.Module) -> None:
    """Raise RuntimeError for a model that is wrapped or has half-precision tensors."""
    if _WRAPPERS & {cls.__name__ for cls in type(model).__mro__}:
        raise RuntimeError(
            f"a model is already wrapped in {type(model).__name__}: call amp.initialize first, "
            "then wrap what it returns"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dtype in HALF_TYPES:
            raise RuntimeError(
                f"{name} of a {type(model).__name__} is {tensor.dtype} already: pass the model in "
                "fp32, without .half(), and amp.initialize casts it"
            )
