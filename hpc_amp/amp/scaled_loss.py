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

    Gives the loss in fp32 times the scale of `loss_id`. When the block ends, the new gradients of
    `optimizers` (one or a list: all whose parameters get gradients from this loss) are unscaled and
    added to those that were there. Where one is infinite or NaN, the scale is halved, and the next
    `step` of each of `optimizers` is skipped, once.

    With `delay_unscale` the block changes nothing; the next one at the same scale unscales the sum.
    With `delay_overflow_check` nothing is skipped and the scale does not move. `model` is ignored,
    as by apex. Casts of O1 are off in the block.

    Raises RuntimeError before `initialize` and for an optimizer that it was not given, IndexError
    for a `loss_id` outside of `num_losses`, `ScaleFloorError` where the gradients are never finite.
    """
    now = state.current()
    if now.properties is None:
        yield loss
        return
    given = dict.fromkeys(_one_or_more(optimizers))
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
    # A static scale is never judged: the caller answers for it.
    overflow = scaler.dynamic and any(bool(verdict) for verdict in verdicts)
    for optimizer in patched if overflow else ():
        optimizer.skip_next = True
    scaler.update(overflow)  # which may raise: a script that goes on must not step on infinity
    if overflow:
        now.say(
            f"gradient overflow, skipping the step; {scaler.name} has scale {scaler.value:g} now"
        )


def _refuse_local_gradients(now: AmpState, patched: Sequence[PatchedOptimizer]) -> None:
    """Other networks may well be in no_sync(): a discriminator in its generator's pass."""
    local = [ddp for ddp in now.replicas if not ddp.require_backward_grad_sync]
    if not local:
        return
    wanted = {p for optimizer in patched for p in optimizer.gradients.model_parameters()}
    if all(wanted.isdisjoint(ddp.parameters()) for ddp in local):
        return
    raise RuntimeError(
        "amp.scale_loss inside no_sync(): the gradients of this rank alone would be judged, and "
        "never exchanged. Pass delay_unscale=True there, and leave it out in the last micro-batch, "
        "outside of no_sync(), whose backward pass exchanges the sum"
    )


def _patched(now: AmpState, optimizer: Any) -> PatchedOptimizer:
    if optimizer not in now.optimizers:
        raise RuntimeError(
            f"amp.initialize was not given this {type(optimizer).__name__}: optimizers that are "
            "made, or copied, later are unknown to amp"
        )
    return now.optimizers[optimizer]


def _one_or_more(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
