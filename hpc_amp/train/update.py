"""One optimizer update: forward and backward over micro-batches, unscale, clip, step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.loss_gradients import parameters_of
from hpc_amp.amp.model_precision import ModelPrecision
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Optimizer, Train
from hpc_amp.tasks.base import Networks, Phase, Task
from hpc_amp.train.losses import RecentLosses
from hpc_amp.train.optimizers import build_optimizer
from hpc_amp.train.settings import SettingError


class PhaseUpdate:
    """Carries out one phase of a step.

    `networks` are what the task calls (wrapped in DDP where there are several ranks). `losses` are
    those of the steps since the last report. `skipped` updates overflowed, in one loss or several.
    """

    def __init__(
        self, task: Task, phase: Phase, networks: Networks, precision: ModelPrecision, train: Train
    ) -> None:
        self.phase = phase
        self._task = task
        self._networks = networks
        self._policy = policy = precision.policy
        self._clip_norm = train.clip_norm
        updated = [networks[name] for name in phase.networks]
        self._distributed = [n for n in updated if isinstance(n, DistributedDataParallel)]
        _check_eps(phase.optimizer, policy)
        self.optimizer = build_optimizer(phase.optimizer, updated, task.device)
        self._gradients = precision.gradients(self.optimizer)
        self._parameters = list(parameters_of(self.optimizer))
        self.scalers: Mapping[str, LossScaler] = {
            name: LossScaler(train.precision, name=f"{phase.name}/{name}")
            for name in (phase.losses if policy.scales_loss else ())
        }
        self.skipped = 0
        self.losses: dict[str, RecentLosses] = {
            name: RecentLosses(train.log_every, task.device) for name in phase.losses
        }

    def set_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times each group's peak."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor

    def run(self, micro_batches: Sequence[Any], before_step: Callable[[], None]) -> bool:
        """Update the phase's networks from `micro_batches`. Calls `before_step` before anything
        changes that optimizers change. Returns whether the step was taken: an overflow under a loss
        scaler skips it."""
        self._zero_gradients()
        for losses in self.losses.values():
            losses.begin()
        if len(self.scalers) > 1:
            taken = self._backward_several(micro_batches)
        else:
            taken = self._backward_one(micro_batches)
        if not taken:
            self.skipped += 1
            self._gradients.drop_master_gradients()
            return False
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        before_step()
        self.optimizer.step()
        self._gradients.masters_stepped()
        return True

    def _zero_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._gradients.zero(set_to_none=True)

    def rehearse(self, micro_batches: Sequence[Any]) -> None:
        """Forward and backward, without an update of anything."""
        for losses in self.losses.values():
            losses.begin()
        for _, loss in self._losses(micro_batches[0], 1):
            loss.backward()
        for losses in self.losses.values():
            losses.forget_step()
        self._zero_gradients()

    def _backward_one(self, micro_batches: Sequence[Any]) -> bool:
        """Accumulate gradients at one scale; ranks exchange them with the last micro-batch. Returns
        whether they can be used."""
        if self.scalers:
            self._gradients.set_aside()
        *first, last = micro_batches
        with contextlib.ExitStack() as stack:
            for network in self._distributed if first else ():
                stack.enter_context(network.no_sync())
            for batch in first:
                self._backward(batch, len(micro_batches))
        self._backward(last, len(micro_batches))
        for scaler in self.scalers.values():
            overflow = bool(self._gradients.unscale(scaler))
            scaler.update(overflow)
            return not overflow
        return True

    def _backward(self, batch: Any, parts: int) -> None:
        for name, loss in self._losses(batch, parts):
            scaler = self.scalers.get(name)
            (scaler.scale(loss) if scaler else loss).backward()

    def _backward_several(self, micro_batches: Sequence[Any]) -> bool:
        """Losses with scales of their own: each backward's gradients are alone when they are
        unscaled, then added to what the others left. Ranks exchange at every backward."""
        overflows = dict.fromkeys(self.scalers, False)
        for batch in micro_batches:
            for name, loss in self._losses(batch, len(micro_batches)):
                self._gradients.set_aside()
                self.scalers[name].scale(loss).backward()
                overflows[name] |= bool(self._gradients.unscale(self.scalers[name]))
        for name, scaler in self.scalers.items():
            scaler.update(overflows[name])
        return not any(overflows.values())

    def _losses(self, batch: Any, parts: int) -> Iterator[tuple[str, Tensor]]:
        """The task's losses of one micro-batch, each divided by the number of micro-batches."""
        losses = self._task.losses(self.phase.name, batch, self._networks)
        while True:
            with self._policy.autocast():
                entry = next(losses, None)
            if entry is None:
                return
            name, loss = entry
            if parts > 1:
                loss = loss / parts
            self.losses[name].add(loss)
            yield name, loss


def _check_eps(config: Optimizer, policy: PrecisionPolicy) -> None:
    """Raise SettingError where Adam would divide by 0: the square of a small gradient is 0 in half
    precision, and so may `eps` be."""
    if config.name == "sgd" or policy.weight_dtype is None or policy.master_weights:
        return
    if torch.tensor(config.eps, dtype=policy.weight_dtype) == 0:
        raise SettingError(
            f"precision {policy.mode} computes Adam's steps in fp16, where eps {config.eps:g} is 0 "
            "and the weights become NaN; set the eps of the task's optimizer to 1e-4, or use O2"
        )
