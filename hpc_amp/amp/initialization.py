"""`amp.initialize`, as apex.amp 1.0 had it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from hpc_amp.amp import registry, state
from hpc_amp.amp.function_casts import FunctionCasts
from hpc_amp.amp.input_checks import models_of, optimizers_of
from hpc_amp.amp.master_weights import MasterWeights
from hpc_amp.amp.model_casts import cast_model, cast_outputs
from hpc_amp.amp.opt_levels import Properties, resolve
from hpc_amp.amp.optimizer_patch import PatchedOptimizer
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.ranks import await_first_training
from hpc_amp.amp.scaler import LossScaler
from hpc_amp.amp.state import AmpState
from hpc_amp.config import schema

DEFAULT_MIN_LOSS_SCALE = 2.0**-14
"""apex has no lower limit. There, the scale of a loss that is never finite falls to 0, and the
first finite loss then turns the weights into NaN."""


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | bool | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    *,
    dtype: torch.dtype = torch.float16,
) -> Any:
    """Prepare models and optimizers for mixed precision. They are changed in place and returned as
    they were given, each one or a list; without `optimizers`, only the models are returned.

    Call it once, with everything that is trained, after the models are on their device and before
    DistributedDataParallel wraps them.

    `enabled`: False makes amp do nothing, in all of its functions.
    `opt_level`: O0 to O3; it sets the defaults of the next five arguments (`docs/apex.md`).
    `cast_model_outputs`: the type of the models' results.
    `num_losses`: how many loss scalers there are (`loss_id` of `scale_loss`).
    `verbosity`: 0 prints nothing, 1 the properties and each skipped step, 2 also each cast that amp
    makes itself.
    `min_loss_scale`, `max_loss_scale`: limits of a dynamic loss scale; the lower one is 2**-14 by
    default.
    `dtype`: the half-precision type, float16 or bfloat16. bfloat16 needs no loss scale.

    Raises RuntimeError, TypeError, ValueError or AssertionError, with the reason, if this cannot
    work. Nothing is changed then.

    Source: the documentation of apex.amp 1.0, https://nvidia.github.io/apex/amp.html.
    """
    if state.is_initialized():
        raise RuntimeError(
            "amp.initialize was called before: pass all models and optimizers in one call, or call "
            "amp.reset() first"
        )
    if enabled:
        overrides = {
            "cast_model_type": cast_model_type,
            "patch_torch_functions": patch_torch_functions,
            "keep_batchnorm_fp32": keep_batchnorm_fp32,
            "master_weights": master_weights,
            "loss_scale": loss_scale,
        }
        properties = resolve(opt_level, dtype, overrides)
        new = AmpState(properties, verbosity)
        new.scalers = [
            _scaler(i, properties, min_loss_scale, max_loss_scale) for i in range(num_losses)
        ]
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(new.undo.close)
            prepared = models_of(models), optimizers_of(optimizers)
            _set_up(new, properties, *prepared, cast_model_outputs, dtype)
            on_failure.pop_all()
        state.start(new)
        new.say(str(properties))
    else:
        state.start(AmpState(properties=None, verbosity=verbosity))
    if optimizers is None:
        return models
    return models, optimizers


def _set_up(
    new: AmpState,
    properties: Properties,
    models: list[nn.Module],
    optimizers: list[Any],
    cast_model_outputs: torch.dtype | None,
    half: torch.dtype,
) -> None:
    """Prepare models and optimizers. Closing `new.undo` reverts whatever has been changed, even if
    this raises an error."""
    if properties.cast_model_type is not None:
        for optimizer in optimizers:
            new.undo.callback(_cast_state, optimizer)
    new.masters = MasterWeights() if properties.master_weights else None
    device_type = _device_type(models)
    for model in models:
        if properties.cast_model_type is not None:
            cast_model(
                model,
                properties.cast_model_type,
                keep_batchnorm_fp32=bool(properties.keep_batchnorm_fp32),
                outputs=cast_model_outputs or torch.float32,
                masters=new.masters,
                undo=new.undo,
            )
        elif cast_model_outputs is not None:
            cast_outputs(model, cast_model_outputs, undo=new.undo)
    for optimizer in optimizers:
        new.optimizers[optimizer] = PatchedOptimizer(
            optimizer, new.masters, state.without_casts, new.undo
        )
        if properties.cast_model_type is not None:
            _cast_state(optimizer)
    if new.masters is not None:
        new.masters.forget()
    if properties.patch_torch_functions:
        precision = schema.Precision(mode="fp16" if half is torch.float16 else "bf16")
        # Raises PrecisionError if torch cannot autocast to `half` on this device.
        PrecisionPolicy.create(precision, torch.device(device_type))
        trace = (lambda text: new.say(text, verbosity=2)) if new.verbosity >= 2 else None
        new.function_casts = FunctionCasts(device_type, half, registry.registered, trace, new.undo)
        new.function_casts.switch_on(new.undo)
    await_first_training(models, new)


def _cast_state(optimizer: Any) -> None:
    """Cast the state of an optimizer to the present types of its parameters."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())


def _scaler(
    index: int, properties: Properties, min_scale: float | None, max_scale: float
) -> LossScaler:
    """The loss scaler of one loss. A scale of 'dynamic' begins at 2**16."""
    static = None if properties.loss_scale == "dynamic" else properties.loss_scale
    precision = schema.Precision(
        mode="fp16",
        init_scale=min(max_scale, 2.0**16),
        min_scale=DEFAULT_MIN_LOSS_SCALE if min_scale is None else min_scale,
        max_scale=max_scale,
        static_scale=static,
    )
    return LossScaler(precision, name=f"loss {index}")


def _device_type(models: list[nn.Module]) -> str:
    """The type of device that the models are on: a GPU if any of them is on one."""
    types = {tensor.device.type for model in models for tensor in model.parameters()}
    return "cpu" if types <= {"cpu"} else (types - {"cpu"}).pop()
