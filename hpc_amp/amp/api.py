"""What a script asks of amp besides: its state, master weights, whether a step was taken."""

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
    """The parameters that `optimizer` updates: fp32 masters where it has them. Clip these, after
    the `scale_loss` block: `clip_grad_norm_(amp.master_params(optimizer), max_norm)`."""
    return parameters_of(optimizer)


def stepped(optimizer: Any) -> bool:
    """Whether the last `optimizer.step()` changed the weights: false where an overflow made amp
    skip it. `if amp.stepped(optimizer): scheduler.step()` keeps a schedule in step with the
    weights. An optimizer that amp was not given steps always."""
    now = state.current()
    return optimizer not in now.optimizers or now.optimizers[optimizer].stepped


def loss_scale(loss_id: int = 0) -> float:
    """The scale of a loss, for a log; 1 where amp is not enabled."""
    now = state.current()
    return now.scalers[loss_id].value if now.properties is not None else 1.0


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of all loss scalers in apex's format, which a checkpoint should have. It is empty
    where amp is not enabled."""
    saved = scaler_states.apex_state(state.current().scalers)
    if destination is None:
        return saved
    destination.update(saved)
    return destination


def load_state_dict(saved: Mapping[str, Any]) -> None:
    """Take over what `state_dict` returned, or apex's, or that of a `torch.amp.GradScaler`, whose
    scale every loss gets. Call it on every rank, after `initialize` with the same `opt_level`.

    Raises RuntimeError for keys that are no loss scalers, after the rest was loaded.
    """
    now = state.current()
    native = scaler_states.is_grad_scaler_state(saved)
    load = scaler_states.load_grad_scaler_state if native else scaler_states.load_apex_state
    load(now.scalers, saved, now.say)


def grad_scaler_state_dict(loss_id: int = 0) -> dict[str, float | int]:
    """The state of a loss scaler for `torch.amp.GradScaler.load_state_dict`: the way out of amp."""
    return scaler_states.grad_scaler_state(state.current().scalers[loss_id])


def check_ranks(group: dist.ProcessGroup | None = None) -> None:
    """Compare the loss scales of all ranks, which call this together; RuntimeError where they
    differ. It happens by itself when DistributedDataParallel first trains a model: call it after a
    `load_state_dict` in the middle of a training."""
    check_scales(state.current().scalers, group)


def disable_casts() -> AbstractContextManager[object]:
    """A context in which functions compute in the types that they are given, at O1."""
    return state.without_casts()


def init(*args: Any, **kwargs: Any) -> NoReturn:
    """The entry of amp before version 1.0, which is gone: RuntimeError."""
    raise RuntimeError(
        "amp.init() and its handle are from before amp 1.0: write "
        "`model, optimizer = amp.initialize(model, optimizer, opt_level='O1')` and "
        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"
    )
