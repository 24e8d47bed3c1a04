"""One optimizer update: forward and backward over micro-batches, unscale, clip, step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.loss_gradients import parameters_of
from hpc_amp.amp.model_precision import ModelPrecision
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Optimizer, Train
from hpc_amp.distributed.gradients import average_gradients
from hpc_amp.tasks.base import Losses, Networks, Phase, Task
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.losses import RecentLosses
from hpc_amp.train.optimizers import build_optimizer
from hpc_amp.train.settings import SettingError


@dataclass(frozen=True, slots=True)
class _Backward:
    """A backward pass of one micro-batch: of a weighted sum of losses. After the last one of a
    forward pass its graph is freed."""

    loss: Tensor
    scaler: LossScaler | None
    is_last: bool


class PhaseUpdate:
    """Carries out one phase of a step.

    `networks` are those of the task, on the device; `wrap` wraps one that this phase updates in DDP
    where there are several ranks. `losses` are those of the steps since the last report. `skipped`
    updates overflowed, in one loss or several.
    """

    def __init__(
        self,
        task: Task,
        phase: Phase,
        networks: Networks,
        wrap: Callable[[nn.Module], nn.Module],
        precision: ModelPrecision,
        train: Train,
    ) -> None:
        self.phase = phase
        self._task = task
        self._policy = policy = precision.policy
        self._clip_norm = train.clip_norm
        updated = {name: wrap(networks[name]) for name in phase.networks}
        self._networks = {**networks, **updated}
        self._frozen = _trainable(networks.values(), besides=updated.values())
        self._distributed = [n for n in updated.values() if isinstance(n, DistributedDataParallel)]
        _refuse_shared(self._distributed, phase)
        _check_eps(phase.optimizer, policy)
        self.optimizer = build_optimizer(phase.optimizer, list(updated.values()), task.device)
        self._gradients = precision.gradients(self.optimizer)
        self._parameters = list(parameters_of(self.optimizer))
        passes = [(entry,) if isinstance(entry, str) else entry for entry in phase.losses]
        separate = phase.separate_scalers and policy.scales_loss
        self._backward_groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {
            names: [(name,) for name in names] if separate else [names] for names in passes
        }
        """The losses of each forward pass, and which of them go backward together."""
        groups = [group for groups in self._backward_groups.values() for group in groups]
        self.scalers: Mapping[str, LossScaler] = {
            _name(group): LossScaler(train.precision, name=f"{phase.name}/{_name(group)}")
            for group in (groups if policy.scales_loss else ())
        }
        # DDP exchanges gradients in the first backward pass after a forward pass only.
        self._averages_itself = separate and bool(self._distributed) and len(self.scalers) > 1
        self.skipped = 0
        self.rehearsed = False
        """Whether `rehearse` was called in this attempt."""
        self.losses: dict[str, RecentLosses] = {
            name: RecentLosses(train.log_every, task.device) for names in passes for name in names
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
        with self._others_frozen():
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

    @contextlib.contextmanager
    def _others_frozen(self) -> Iterator[None]:
        """The networks that this phase does not update get no gradient."""
        for parameter in self._frozen:
            parameter.requires_grad = False
        try:
            yield
        finally:
            for parameter in self._frozen:
                parameter.requires_grad = True

    def rehearse(self, micro_batches: Sequence[Any]) -> None:
        """Forward and backward, without an update of anything: for DDP, where that is used."""
        self.rehearsed = True
        if self._averages_itself:
            return
        for losses in self.losses.values():
            losses.begin()
        with self._others_frozen():
            for backward in self._backwards(micro_batches[0], 1):
                backward.loss.backward()
        for losses in self.losses.values():
            losses.forget_step()
        self._zero_gradients()

    def _backward_one(self, micro_batches: Sequence[Any]) -> bool:
        """Accumulate gradients at one scale; ranks exchange them with the last micro-batch. Returns
        whether they can be used."""
        if self.scalers:
            self._gradients.set_aside()
        *first, last = micro_batches
        with self._no_exchange() if first else contextlib.nullcontext():
            for batch in first:
                self._backward(batch, len(micro_batches))
        self._backward(last, len(micro_batches))
        for scaler in self.scalers.values():
            overflow = bool(self._gradients.unscale(scaler))
            scaler.update(overflow)
            return not overflow
        return True

    def _backward(self, batch: Any, parts: int) -> None:
        for backward in self._backwards(batch, parts):
            loss, scaler = backward.loss, backward.scaler
            (scaler.scale(loss) if scaler else loss).backward()

    def _backward_several(self, micro_batches: Sequence[Any]) -> bool:
        """Losses with scales of their own: each backward's gradients are alone when they are
        unscaled, then added to what the others left. Ranks exchange at every backward."""
        overflows = dict.fromkeys(self.scalers.values(), False)
        with self._no_exchange() if self._averages_itself else contextlib.nullcontext():
            for batch in micro_batches:
                for backward in self._backwards(batch, len(micro_batches)):
                    scaler = backward.scaler
                    assert scaler is not None
                    self._gradients.set_aside()
                    scaler.scale(backward.loss).backward(retain_graph=not backward.is_last)
                    if self._averages_itself:
                        average_gradients(list(self._gradients.model_parameters()))
                    overflows[scaler] |= bool(self._gradients.unscale(scaler))
        for scaler, overflow in overflows.items():
            scaler.update(overflow)
        return not any(overflows.values())

    @contextlib.contextmanager
    def _no_exchange(self) -> Iterator[None]:
        """DDP leaves the gradients of these forward and backward passes on their rank."""
        with contextlib.ExitStack() as stack:
            for network in self._distributed:
                stack.enter_context(network.no_sync())
            yield

    def _backwards(self, batch: Any, parts: int) -> Iterator[_Backward]:
        """The backward passes of one micro-batch, their losses divided by the number of
        micro-batches. Raises TrainingError where the task yields others than the phase has."""
        missing = list(self._backward_groups)
        losses = self._task.losses(self.phase.name, batch, self._networks)
        while True:
            with self._policy.autocast():
                entry = next(losses, None)
                if entry is None:
                    break
                if not isinstance(entry, Mapping):
                    raise self._other_losses(f"a {type(entry).__name__}, which is not a dictionary")
                names = self._names(entry)
                if names not in missing:
                    raise self._other_losses(f"`{_name(tuple(entry))}`")
                missing.remove(names)
                parted = {name: entry[name] / parts if parts > 1 else entry[name] for name in names}
                for name, loss in parted.items():
                    self.losses[name].add(loss)
                groups = self._backward_groups[names]
                sums = [self._weighted_sum(parted, group) for group in groups]
            for group, loss in zip(groups, sums, strict=True):
                scaler = self.scalers.get(_name(group))
                yield _Backward(loss, scaler, is_last=group is groups[-1])
        if missing:
            raise self._other_losses("fewer")

    def _names(self, entry: Losses) -> tuple[str, ...]:
        """The names of a forward pass in the phase's order: sums depend on it."""
        found = (names for names in self._backward_groups if set(names) == set(entry))
        return next(found, tuple(entry))

    def _weighted_sum(self, losses: Losses, names: tuple[str, ...]) -> Tensor:
        """In fp32 where it is one of several: a sum of half-precision losses may overflow."""
        weights = self.phase.weights
        if len(names) == 1 and names[0] not in weights:
            return losses[names[0]]
        return torch.stack([losses[n].float() * weights.get(n, 1.0) for n in names]).sum()

    def _other_losses(self, what: str) -> TrainingError:
        wanted = ", ".join(map(_name, self._backward_groups))
        return TrainingError(
            f"task {self._task.name}: phase `{self.phase.name}` declares the losses {wanted}, each "
            f"once a micro-batch, but `losses` yields {what}"
        )


def _name(losses: tuple[str, ...]) -> str:
    """What losses that go backward together are called."""
    return "+".join(losses)


def _refuse_shared(networks: Sequence[nn.Module], phase: Phase) -> None:
    """Raise TrainingError where networks have weights in common: each has a DDP of its own, which
    would exchange the gradients of its own part alone."""
    seen: set[nn.Parameter] = set()
    for network in networks:
        parameters = set(network.parameters())
        if seen & parameters:
            raise TrainingError(
                f"phase `{phase.name}`: its networks share weights, which several ranks cannot "
                "train; make them one network"
            )
        seen |= parameters


def _trainable(networks: Iterable[nn.Module], besides: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters that are trained somewhere, without those of the networks `besides`."""
    left_out = {parameter for network in besides for parameter in network.parameters()}
    found = {p: None for network in networks for p in network.parameters() if p.requires_grad}
    return [parameter for parameter in found if parameter not in left_out]


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
