"""Gradients of several losses for one optimizer, each scaled by a scale of its own.

Backward passes add to what is there, so gradients at different scales would mix. Here each pass
starts with none; its gradients are unscaled and judged by themselves, and then what was there
before is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpc_amp.amp.master_weights import MasterWeights, copy_each, needs_master
from hpc_amp.amp.scaler import LossScaler


def parameters_of(optimizer: Any) -> Iterator[nn.Parameter]:
    """The parameters that `optimizer` works on, over all its groups; master weights included."""
    for group in optimizer.param_groups:
        yield from group["params"]


class LossGradients:
    """The gradients that an optimizer steps on.

    One backward pass is `set_aside()`, `scaler.scale(loss).backward()`, `unscale(scaler)`. With
    `masters`, the optimizer gets fp32 master weights in place of its half-precision parameters, and
    `unscale` moves gradients to them; `step` is then followed by `masters_stepped()`.

    `optimizer` is a torch optimizer, or a wrapper that shows `param_groups` and `state`.
    """

    def __init__(self, optimizer: Any, masters: MasterWeights | None = None) -> None:
        self._optimizer = optimizer
        self._masters = masters
        self._model_parameter: dict[nn.Parameter, nn.Parameter] = {}
        self._aside: dict[nn.Parameter, Tensor] = {}
        self._followed_models = False
        self.adopt(*optimizer.param_groups)

    def adopt(self, *groups: dict[str, Any]) -> None:
        """Put masters in the place of the half-precision parameters of parameter groups.

        Raises TypeError for parameters of a type that amp cannot train, ValueError for one that is
        in the optimizer already; nothing is changed then.
        """
        if self._masters is None:
            return
        known = set(self._model_parameter.values())
        places = [(g["params"], i, p) for g in groups for i, p in enumerate(g["params"])]
        places = [place for place in places if needs_master(place[2])]
        if any(parameter in known for _, _, parameter in places):
            raise ValueError("some parameters are in more than one group of the optimizer")
        for parameters, index, parameter in places:
            master = self._masters.add(parameter)
            parameters[index] = master
            self._model_parameter[master] = parameter
            _move_state(self._optimizer, parameter, master)

    def model_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the model that the optimizer changes, itself or through masters."""
        for parameter in parameters_of(self._optimizer):
            yield self._model_parameter.get(parameter, parameter)

    def release(self) -> None:
        """Give the optimizer its parameters back, in fp32, with the values of their masters."""
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
        """Before a backward pass: keep what other passes left, so that this one's gradients are
        alone."""
        if self._masters is not None and not self._followed_models:
            self._masters.follow_models(self._model_parameter.values())
            self._followed_models = True
        for parameter in parameters_of(self._optimizer):
            gradient = parameter.grad
            if gradient is not None:
                # A bucket of DistributedDataParallel is written to by the next pass.
                self._aside[parameter] = gradient.clone() if gradient._is_view() else gradient
                parameter.grad = None
        self._drop_model_gradients()

    def put_back(self, done: set[nn.Parameter]) -> None:
        """After a backward pass that failed: what was there before it, and nothing of it. `done`
        are parameters that other optimizers have, too, and that are put back already."""
        for parameter in parameters_of(self._optimizer):
            if parameter in self._aside or parameter not in done:
                parameter.grad = self._aside.get(parameter)
        done.update(parameters_of(self._optimizer))
        self._drop_model_gradients()
        self._aside.clear()

    @torch.no_grad()
    def unscale(self, scaler: LossScaler, done: set[nn.Parameter] | None = None) -> Tensor:
        """After a backward pass: divide its gradients by the scale, and add what was set aside.
        Returns a scalar tensor, true where a gradient of this pass is infinite or NaN. `done` are
        parameters that other optimizers have, too, and that are unscaled already."""
        done = set() if done is None else done
        # Until the next pass, the model keeps the scaled gradients in half precision.
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
        """Give the masters the gradients of the model, in fp32."""
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
        """After the optimizer's step: round the masters into the model, and drop their gradients,
        which the model's own `zero_grad` does not reach."""
        if self._masters is not None:
            self._masters.update_models(self._model_parameter.values())
        self.drop_master_gradients()

    def drop_master_gradients(self) -> None:
        """Drop the gradients of all masters."""
        for master in self._model_parameter:
            master.grad = None

    def zero(self, *, set_to_none: bool) -> None:
        """After the optimizer's `zero_grad`: clear what it does not know, the gradients that were
        set aside and those of half-precision parameters."""
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
    """The numbers of a gradient; a sparse one stores some of them."""
    return gradient._values() if gradient.is_sparse else gradient


def _sum(gradient: Tensor, before: Tensor) -> Tensor:
    """Both together, in the memory of one of them; torch adds a sparse one to a dense one only."""
    if gradient.is_sparse and not before.is_sparse:
        gradient, before = before, gradient
    return gradient.add_(before)


def _move_state(optimizer: Any, old: nn.Parameter, new: nn.Parameter) -> None:
    if old in optimizer.state:
        optimizer.state[new] = optimizer.state.pop(old)
