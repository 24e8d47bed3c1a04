"""`amp.scale_loss`, as apex.amp 1.0 had it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from hpc_amp.amp import state
from hpc_amp.amp.optimizer_patch import PatchedOptimizer
from hpc_amp.amp.state import AmpState


@contextlib.contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`.

    Yields the loss in fp32 times the scale of `loss_id`. At the end of the block, the new gradients
    are unscaled and added to those from before. If any of them is infinite or NaN, the scale is
    halved, and the next `step` of each of `optimizers` is skipped.

    `loss`: a scalar tensor.
    `optimizers`: one or a list, all whose parameters get gradients from this loss.
    `loss_id`: which loss scaler to use, from 0 to `num_losses` - 1.
    `model`: ignored, as by apex.
    `delay_unscale`: leave the gradients scaled; the next block at the same scale unscales the sum.
    `delay_overflow_check`: skip no step, and do not change the scale.

    Casts of O1 are off in the block.

    Raises RuntimeError before `initialize` and for an optimizer that `initialize` did not get,
    IndexError for a `loss_id` that does not exist, and ScaleFloorError if gradients keep
    overflowing at the lowest scale.
    """
    now = state.current()
    if now.properties is None:
        yield loss
        return
    given = dict.fromkeys(optimizers if isinstance(optimizers, (list, tuple)) else [optimizers])
    patched = [_patched(now, optimizer) for optimizer in given]
    if not 0 <= loss_id < len(now.scalers):
        raise IndexError(
            f"loss_id {loss_id} does not exist: amp.initialize has num_losses={len(now.scalers)}"
        )
    scaler = now.scalers[loss_id]
    if now.masters is None and not scaler.dynamic and scaler.value == 1.0:
        with state.without_casts():
            yield loss.float()
        return
    if not delay_unscale:
        _refuse_local_gradients(now, patched)
    for optimizer in patched:
        optimizer.check_scale(scaler)
    for optimizer in patched:
        optimizer.before_backward()
    done: set[nn.Parameter] = set()  # one parameter may be in several optimizers
    try:
        with state.without_casts():
            yield scaler.scale(loss)
    except BaseException:
        for optimizer in patched:
            optimizer.backward_failed(done)
        raise
    if delay_unscale:
        for optimizer in patched:
            optimizer.delay_unscale(scaler)
        return
    verdicts = [optimizer.after_backward(scaler, done) for optimizer in patched]
    if delay_overflow_check:
        return
    # A static scale is not checked: the caller is responsible for it.
    overflow = scaler.dynamic and any(bool(verdict) for verdict in verdicts)
    if overflow:
        for optimizer in patched:
            optimizer.skip_next = True
    scaler.update(overflow)  # last, because it may raise, and the steps have to be skipped anyway
    if overflow:
        now.say(
            f"gradients overflowed, the step is skipped; {scaler.name} now has scale "
            f"{scaler.value:g}"
        )


def _refuse_local_gradients(now: AmpState, patched: Sequence[PatchedOptimizer]) -> None:
    """Raise RuntimeError if a model of these optimizers is in no_sync(). Other models may be."""
    local = [ddp for ddp in now.replicas if not ddp.require_backward_grad_sync]
    if not local:
        return
    wanted = {p for optimizer in patched for p in optimizer.gradients.model_parameters()}
    if all(wanted.isdisjoint(ddp.parameters()) for ddp in local):
        return
    raise RuntimeError(
        "amp.scale_loss inside no_sync(): only the gradients of this rank would be checked, and "
        "they would never be exchanged. Pass delay_unscale=True there, but not in the last "
        "micro-batch, whose backward pass is outside of no_sync() and exchanges the sum"
    )


def _patched(now: AmpState, optimizer: Any) -> PatchedOptimizer:
    if optimizer not in now.optimizers:
        raise RuntimeError(
            f"amp.initialize did not get this {type(optimizer).__name__}: amp does not know "
            "optimizers that are made or copied later"
        )
    return now.optimizers[optimizer]
