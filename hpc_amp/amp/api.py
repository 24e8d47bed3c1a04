"""The smaller functions of amp: its state, master weights, whether a step was taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn

from hpc_amp.amp import scaler_states, state
from hpc_amp.amp.loss_gradients import parameters_of
from hpc_amp.amp.ranks import check_scales


def master_params(optimizer: Any) -> Iterator[nn.Parameter]:
    """The parameters that `optimizer` updates: fp32 master weights, if it has any.

    Clip these after the `scale_loss` block: `clip_grad_norm_(amp.master_params(optimizer), norm)`.
    """
    return parameters_of(optimizer)


def stepped(optimizer: Any) -> bool:
    """Whether the last `optimizer.step()` changed the weights. False if amp skipped it because
    gradients overflowed; always true for an optimizer that amp was not given.

    `if amp.stepped(optimizer): scheduler.step()` keeps a schedule in step with the weights.
    """
    now = state.current()
    return optimizer not in now.optimizers or now.optimizers[optimizer].stepped


def loss_scale(loss_id: int = 0) -> float:
    """The scale of a loss, for a log. 1 if amp is not enabled."""
    now = state.current()
    return now.scalers[loss_id].value if now.properties is not None else 1.0


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of all loss scalers in apex's format, for a checkpoint. Empty if amp is not
    enabled. If `destination` is given, it is updated and returned."""
    saved = scaler_states.apex_state(state.current().scalers)
    if destination is None:
        return saved
    destination.update(saved)
    return destination


def load_state_dict(saved: Mapping[str, Any]) -> None:
    """Load the state of the loss scalers. Call it on every rank, after `initialize` with the same
    `opt_level`.

    `saved` is what `state_dict` returned, here or in apex, or the state of a torch.amp.GradScaler,
    whose scale every loss gets. Raises RuntimeError if it has keys that do not belong to a loss
    scaler; the other keys are loaded before that.
    """
    now = state.current()
    native = scaler_states.is_grad_scaler_state(saved)
    load = scaler_states.load_grad_scaler_state if native else scaler_states.load_apex_state
    load(now.scalers, saved, now.say)


def grad_scaler_state_dict(loss_id: int = 0) -> dict[str, float | int]:
    """The state of a loss scaler for `torch.amp.GradScaler.load_state_dict`, for scripts that move
    from amp to torch."""
    return scaler_states.grad_scaler_state(state.current().scalers[loss_id])


def check_ranks(group: dist.ProcessGroup | None = None) -> None:
    """Compare the loss scales of all ranks. A collective call. Raises RuntimeError if they differ.

    This happens by itself when DistributedDataParallel first trains a model. Call it after a
    `load_state_dict` in the middle of a training.
    """
    check_scales(state.current().scalers, group)


def disable_casts() -> AbstractContextManager[object]:
    """A context in which functions compute in the types of their arguments, at O1 as well."""
    return state.without_casts()


def init(*args: Any, **kwargs: Any) -> NoReturn:
    """The entry point of amp before version 1.0. Raises RuntimeError."""
    raise RuntimeError(
        "amp.init() and its handle are from before amp 1.0: write "
        "`model, optimizer = amp.initialize(model, optimizer, opt_level='O1')` and "
        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"
    )
