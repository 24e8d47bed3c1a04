"""An optimizer that skips a step if gradients overflowed, and that updates master weights."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn

from hpc_amp.amp.loss_gradients import LossGradients
from hpc_amp.amp.master_weights import MasterWeights
from hpc_amp.amp.scaler import LossScaler


class _Overflow(Exception):
    """The gradients of a closure overflowed."""


class PatchedOptimizer:
    """An optimizer whose `step`, `zero_grad` and `add_param_group` are replaced by those of amp.

    `masters`: the master weights of all models, if they are used.
    `without_casts`: makes the context in which a step runs.
    `undo`: closing it restores the optimizer.

    Attributes: `skip_next`, whether the next step is skipped; `stepped`, whether the last call of
    `step` changed the weights.
    """

    def __init__(
        self,
        optimizer: Any,
        masters: MasterWeights | None,
        without_casts: Callable[[], AbstractContextManager[object]],
        undo: ExitStack,
    ) -> None:
        self.optimizer = optimizer
        self.skip_next = False
        self.stepped = False
        self.gradients = LossGradients(optimizer, masters)
        undo.callback(self.gradients.release)
        self._has_masters = masters is not None
        self._without_casts = without_casts
        self._pending_scale: float | None = None
        for name in ("step", "zero_grad", "add_param_group"):
            self._take_over(name, getattr(self, f"_{name}"), undo)

    def _take_over(self, name: str, replacement: Callable[..., Any], undo: ExitStack) -> None:
        """Replace a method of the optimizer. `replacement` gets the original as its first
        argument."""
        original = getattr(self.optimizer, name)
        instance = vars(self.optimizer)
        undo.callback(_restore, instance, name, instance.get(name))

        # Bound to the optimizer and with the attributes of the original, because learning rate
        # schedulers look at these when they wrap `step`, before or after this.
        @functools.wraps(original)
        def method(_: Any, *args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        instance[name] = types.MethodType(method, self.optimizer)

    # -- around a backward pass -------------------------------------------------------------------

    def check_scale(self, scaler: LossScaler) -> None:
        """Raise RuntimeError if gradients are still scaled, and by another scale than that of the
        next pass. Changes nothing."""
        if self._pending_scale not in (None, scaler.value):
            raise RuntimeError(
                f"an optimizer has gradients at scale {self._pending_scale:g} from a backward pass "
                f"with delay_unscale=True, and this one is at scale {scaler.value:g}: they cannot "
                "be added up. Use one loss_id for all of them, or delay_unscale=False"
            )

    def before_backward(self) -> None:
        """Set existing gradients aside. If they are still scaled, this pass adds to them."""
        if self._pending_scale is None:
            self.gradients.set_aside()

    def after_backward(self, scaler: LossScaler, done: set[nn.Parameter]) -> torch.Tensor:
        """Unscale the gradients of a pass. `done` and the result are those of
        `LossGradients.unscale`."""
        self._pending_scale = None
        return self.gradients.unscale(scaler, done)

    def delay_unscale(self, scaler: LossScaler) -> None:
        """Leave the gradients scaled until a later pass."""
        self._pending_scale = scaler.value

    def backward_failed(self, done: set[nn.Parameter]) -> None:
        """Restore the gradients from before the pass. Gradients that were still scaled are lost."""
        self._pending_scale = None
        self.gradients.put_back(done)

    # -- in place of the optimizer's methods ------------------------------------------------------

    def _step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces `step`: skip the step if gradients overflowed, otherwise make it and update the
        models from their master weights."""
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (self._has_masters or self.skip_next):
            raise RuntimeError(
                "amp cannot pass a closure to optimizer.step(): compute the loss and its gradients "
                "before, and call step() without one"
            )
        if self._pending_scale is not None:
            raise RuntimeError(
                "optimizer.step() was called while gradients have the loss scale on them: the last "
                "backward pass before it has to be without delay_unscale=True"
            )
        if self.skip_next:
            return self._skip(step)
        if closure is not None:
            kwargs.pop("closure", None)
            args = (self._until_overflow(closure), *args[1:])
        try:
            with self._without_casts():
                result = step(*args, **kwargs)
        except _Overflow:
            return self._skip(step)
        self.stepped = True
        self.gradients.masters_stepped()
        return result

    def _skip(self, step: Callable[..., Any]) -> None:
        self.skip_next = self.stepped = False
        self.gradients.drop_master_gradients()
        _count_call(step, self.optimizer)

    def _until_overflow(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap `closure` so that the step ends if its gradients overflow. Optimizers call a closure
        before they change anything; one that calls it again cannot undo what it has changed."""
        calls = 0

        def watched() -> Any:
            nonlocal calls
            loss = closure()
            calls += 1
            if not self.skip_next:
                return loss
            if calls == 1:
                raise _Overflow
            self.skip_next = False
            raise RuntimeError(
                f"gradients overflowed in call {calls} of the closure, and "
                f"{type(self.optimizer).__name__} has changed the weights since the first one: "
                "this step cannot be skipped. Use a smaller loss_scale, or bfloat16"
            )

        return watched

    def _zero_grad(self, zero_grad: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        zero_grad(*args, **kwargs)
        self.gradients.zero(set_to_none=args[0] if args else kwargs.get("set_to_none", True))
        self._pending_scale = None

    def _add_param_group(self, add_param_group: Callable[..., None], group: Any) -> None:
        if not isinstance(group, dict):
            raise AssertionError(f"a parameter group is a dict, not a {type(group).__name__}")
        if isinstance(group.get("params"), set):
            raise TypeError("the parameters of a group need an order: give a list, not a set")
        add_param_group(group)
        try:
            self.gradients.adopt(self.optimizer.param_groups[-1])
        except (TypeError, ValueError):
            self.optimizer.param_groups.pop()
            raise


def _restore(instance: dict[str, Any], name: str, own: Any) -> None:
    """Restore the attribute `name` of an object: its own value, or that of its class."""
    if own is None:
        instance.pop(name, None)
    else:
        instance[name] = own


def _count_call(step: Callable[..., Any], optimizer: Any) -> None:
    """Count a skipped step as a call for a learning rate scheduler that has wrapped `step`. It
    would otherwise warn that the scheduler is called before the optimizer."""
    if hasattr(step, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True
    elif hasattr(step, "_with_counter"):  # before torch 2.4
        optimizer._step_count += 1
