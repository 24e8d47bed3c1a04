"""Gradients of several losses for one optimizer, where each loss has a scale of its own.

A backward pass adds to the gradients that exist, so gradients at different scales would mix. Here,
each pass starts without gradients. Its gradients are unscaled and checked alone, and the earlier
gradients are then added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpc_amp.amp.master_weights import MasterWeights, copy_each, needs_master
from hpc_amp.amp.scaler import LossScaler


def parameters_of(optimizer: Any) -> Iterator[nn.Parameter]:
    """All parameters of an optimizer's groups. Master weights are among them, not their models'."""
    for group in optimizer.param_groups:
        yield from group["params"]


class LossGradients:
    """The gradients that an optimizer uses.

    For one backward pass, call `set_aside()`, `scaler.scale(loss).backward()`, `unscale(scaler)`.

    `optimizer`: a torch optimizer, or a wrapper that has `param_groups` and `state`.
    `masters`: if given, the optimizer gets fp32 master weights in place of its half-precision
    parameters, and `unscale` moves gradients to them. Call `masters_stepped()` after each step.
    """

    def __init__(self, optimizer: Any, masters: MasterWeights | None = None) -> None:
        self._optimizer = optimizer
        self._masters = masters
        self._model_parameter: dict[nn.Parameter, nn.Parameter] = {}
        self._aside: dict[nn.Parameter, Tensor] = {}
        self._followed_models = False
        self.adopt(*optimizer.param_groups)

    def adopt(self, *groups: dict[str, Any]) -> None:
        """Replace the half-precision parameters in parameter groups by master weights.

        Raises TypeError for a parameter of a type that amp cannot train, and ValueError for one
        that the optimizer already has. Nothing is changed then.
        """
        if self._masters is None:
            return
        known = set(self._model_parameter.values())
        places: list[tuple[list[nn.Parameter], int, nn.Parameter]] = []
        for group in groups:
            for index, parameter in enumerate(group["params"]):
                if needs_master(parameter):
                    places.append((group["params"], index, parameter))
        if any(parameter in known for _, _, parameter in places):
            raise ValueError("some parameters are in more than one group of the optimizer")
        for parameters, index, parameter in places:
            master = self._masters.add(parameter)
            parameters[index] = master
            self._model_parameter[master] = parameter
            _move_state(self._optimizer, parameter, master)

    def model_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the model that the optimizer changes, directly or through masters."""
        for parameter in parameters_of(self._optimizer):
            yield self._model_parameter.get(parameter, parameter)

    def release(self) -> None:
        """Give the optimizer its own parameters back, in fp32, with the values of their masters."""
        for group in self._optimizer.param_groups:
            for index, master in enumerate(group["params"]):
                parameter = self._model_parameter.get(master)
                if parameter is not None:
                    parameter.grad = None
                    parameter.data = master.data
                    group["params"][index] = parameter
                    _move_state(self._optimizer, master, parameter)
        self._model_parameter.clear()

    def set_aside(self) -> None:
        """Called before a backward pass: set existing gradients aside, so that those of this pass
        are alone."""
        if self._masters is not None and not self._followed_models:
            self._masters.follow_models(self._model_parameter.values())
            self._followed_models = True
        for parameter in parameters_of(self._optimizer):
            gradient = parameter.grad
            if gradient is not None:
                # The next pass writes to the buckets of DistributedDataParallel.
                self._aside[parameter] = gradient.clone() if gradient._is_view() else gradient
                parameter.grad = None
        self._drop_model_gradients()

    def put_back(self, done: set[nn.Parameter]) -> None:
        """Called after a backward pass that failed: restore the gradients from before it.

        `done`: parameters that are restored already, because another optimizer has them as well;
        the parameters of this one are added.
        """
        for parameter in parameters_of(self._optimizer):
            if parameter in self._aside or parameter not in done:
                parameter.grad = self._aside.get(parameter)
        done.update(parameters_of(self._optimizer))
        self._drop_model_gradients()
        self._aside.clear()

    @torch.no_grad()
    def unscale(self, scaler: LossScaler, done: set[nn.Parameter] | None = None) -> Tensor:
        """Called after a backward pass: divide its gradients by the scale, and add those that were
        set aside.

        `done`: parameters that are unscaled already, because another optimizer has them as well;
        the parameters of this one are added. Returns a scalar tensor that is true if any gradient
        of this pass is infinite or NaN.
        """
        done = set() if done is None else done
        # The model keeps its scaled half-precision gradients until the next pass.
        self._copy_model_gradients(done)
        own = [p for p in parameters_of(self._optimizer) if p not in done]
        fresh = [p.grad for p in own if p.grad is not None]
        overflow = scaler.unscale([_values(gradient) for gradient in fresh])
        for parameter, before in self._aside.items():
            parameter.grad = before if parameter.grad is None else _sum(parameter.grad, before)
        self._aside.clear()
        done.update(own)
        return overflow

    def _copy_model_gradients(self, done: set[nn.Parameter]) -> None:
        """Copy the gradients of the model to the masters, in fp32."""
        copies, gradients = [], []
        for master, parameter in self._model_parameter.items():
            gradient = parameter.grad
            if gradient is None or master in done:
                continue
            if gradient.is_sparse:
                master.grad = gradient.float()
                continue
            master.grad = torch.empty_like(gradient, dtype=torch.float32)
            copies.append(master.grad)
            gradients.append(gradient)
        copy_each(copies, gradients)

    def masters_stepped(self) -> None:
        """Called after the optimizer's step: round the masters into the model, and drop their
        gradients, which `zero_grad` of the model does not reach."""
        if self._masters is not None:
            self._masters.update_models(self._model_parameter.values())
        self.drop_master_gradients()

    def drop_master_gradients(self) -> None:
        """Drop the gradients of all masters."""
        for master in self._model_parameter:
            master.grad = None

    def zero(self, *, set_to_none: bool) -> None:
        """Called after the optimizer's `zero_grad`: clear gradients that it does not know, those
        that were set aside and those of half-precision parameters."""
        self._aside.clear()
        for parameter in self._model_parameter.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def _drop_model_gradients(self) -> None:
        for parameter in self._model_parameter.values():
            parameter.grad = None


def _values(gradient: Tensor) -> Tensor:
    """The stored values of a gradient, which may be sparse."""
    return gradient._values() if gradient.is_sparse else gradient


def _sum(gradient: Tensor, before: Tensor) -> Tensor:
    """The sum, in the memory of one of them. torch only adds a sparse tensor to a dense one."""
    if gradient.is_sparse and not before.is_sparse:
        gradient, before = before, gradient
    return gradient.add_(before)


def _move_state(optimizer: Any, old: nn.Parameter, new: nn.Parameter) -> None:
    if old in optimizer.state:
        optimizer.state[new] = optimizer.state.pop(old)
