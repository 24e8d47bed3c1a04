"""One optimizer update: forward and backward over micro-batches, unscale, clip, step.

The losses of a phase come in groups. A group goes backward together, as one weighted sum, and has
one loss scaler. `Phase.losses` says which losses form a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.loss_gradients import parameters_of
from hpc_amp.amp.model_precision import ModelPrecision
from hpc_amp.amp.norm import clip, norm
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Optimizer, Train
from hpc_amp.distributed.gradients import average_gradients
from hpc_amp.tasks.base import Losses, Networks, Phase, Task
from hpc_amp.train import optimizers
from hpc_amp.train.errors import SettingError, TrainingError
from hpc_amp.train.losses import RecentLosses

Group = tuple[str, ...]
"""The names of losses that go backward together."""
Average = Callable[[Sequence[nn.Parameter], Tensor], list[bool]]
"""`hpc_amp.distributed.gradients.average_gradients`, or a function that also measures it."""


class _LossGroup(NamedTuple):
    """Losses that go backward together: their names, and their scaler if losses are scaled."""

    names: Group
    scaler: LossScaler | None


class PhaseUpdate:
    """Carries out one phase of a step on this rank.

    `networks`: all networks of the task, on the device.
    `wrap`: wraps a network that this phase updates in DDP, if there are several ranks.
    `precision`: how the networks compute. It must not be complete yet (`ModelPrecision.complete`).
    `average`: averages gradients over the ranks where DDP does not.

    Attributes: `optimizer`; `scalers`, by the names of their groups joined with `+`, empty if the
    precision needs none; `losses` since the last report, by name; `skipped`, the number of updates
    that were skipped because gradients overflowed; `gradient_norm`, the norm that was last measured
    (see `run`), a scalar on the device, or None; `rehearsed`, whether `rehearse` was called.

    Raises SettingError if the optimizer cannot work at this precision, and TrainingError if there
    are several ranks and the networks share weights.
    """

    def __init__(
        self,
        task: Task,
        phase: Phase,
        networks: Networks,
        wrap: Callable[[nn.Module], nn.Module],
        precision: ModelPrecision,
        train: Train,
        average: Average = average_gradients,
    ) -> None:
        self.phase = phase
        self._task = task
        self._policy = policy = precision.policy
        self._autocast = policy.autocast()
        self._clip_norm = train.clip_norm
        self._average = average
        updated = {name: wrap(networks[name]) for name in phase.networks}
        self._networks = {**networks, **updated}
        self._others_frozen = _Frozen(_trainable_elsewhere(networks.values(), updated.values()))
        self._distributed = [n for n in updated.values() if isinstance(n, DistributedDataParallel)]
        _refuse_shared(self._distributed, phase)
        _check_eps(phase.optimizer, policy)
        self.optimizer = optimizers.build_optimizer(phase.optimizer, list(updated.values()))
        self._gradients = precision.gradients(self.optimizer)
        self._parameters = list(parameters_of(self.optimizer))
        forward_passes = [(entry,) if isinstance(entry, str) else entry for entry in phase.losses]
        separate = phase.separate_scalers and policy.scales_loss
        self.scalers: dict[str, LossScaler] = {}
        self._groups: dict[Group, list[_LossGroup]] = {}
        """For each forward pass, given by the names of its losses, its groups."""
        for names in forward_passes:
            groups = [(name,) for name in names] if separate else [names]
            if policy.scales_loss:
                for title in map(_title, groups):
                    self.scalers[title] = LossScaler(train.precision, name=f"{phase.name}/{title}")
            self._groups[names] = [_LossGroup(g, self.scalers.get(_title(g))) for g in groups]
        self._exchanged_by_ddp: dict[nn.Module, bool] = {}
        """The distributed networks that this update has run so far, and whether DDP exchanges their
        gradients: it does so in the backward pass of a forward pass outside of `no_sync`."""
        for network in self._distributed:
            network.register_forward_pre_hook(self._note_forward_pass)
        self.skipped = 0
        self.gradient_norm: Tensor | None = None
        self.rehearsed = False
        self.losses: dict[str, RecentLosses] = {
            name: RecentLosses(train.log_every, task.device)
            for names in forward_passes
            for name in names
        }

    def set_rate(self, factor: float) -> None:
        """Set the learning rate of each parameter group to `factor` times its peak."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor

    def run(
        self,
        micro_batches: Sequence[Any],
        before_step: Callable[[], None],
        *,
        measure: bool = False,
    ) -> bool:
        """Update the networks of the phase.

        `micro_batches` are this rank's parts of one global batch. `before_step` is called before
        the optimizer changes weights. `measure`: store the norm of all gradients, unscaled and
        before they are clipped, in `gradient_norm`; the host does not wait for it. Returns whether
        the update was made: a loss scaler skips it if gradients overflow. Raises ScaleFloorError if
        a loss scale falls to its lower limit.
        """
        self.gradient_norm = None
        self._drop_gradients()
        for losses in self.losses.values():
            losses.begin()
        with self._others_frozen:
            if self._keeps_losses_apart:
                finite = self._backward_with_scalers(micro_batches)
            else:
                finite = self._backward(micro_batches)
        if not finite:
            self.skipped += 1
            self._gradients.drop_master_gradients()
            return False
        if self._clip_norm is not None:
            self.gradient_norm = clip(self._unscaled(), self._clip_norm)
        elif measure:
            self.gradient_norm = norm(self._unscaled())
        before_step()
        optimizers.step(self.optimizer)
        self._gradients.masters_stepped()
        return True

    def _unscaled(self) -> list[Tensor]:
        """The gradients that the optimizer is about to use."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def _drop_gradients(self) -> None:
        # As the optimizer's zero_grad does, which takes ten times as long and slows down what
        # follows: dynamo is switched off and on around it.
        for parameter in self._parameters:
            parameter.grad = None
        self._gradients.zero(set_to_none=True)

    def rehearse(self, micro_batches: Sequence[Any]) -> None:
        """Run forward and backward once without changing losses, gradients or weights. DDP then has
        its final order of buckets (see `Engine._rehearse`)."""
        self.rehearsed = True
        if self._keeps_losses_apart:
            return  # DDP exchanges nothing
        for losses in self.losses.values():
            losses.begin()
        with self._others_frozen:
            for loss, _, _ in self._backwards(micro_batches[0], 1, exchange=True):
                loss.backward()
        for losses in self.losses.values():
            losses.forget_step()
        self._drop_gradients()

    @property
    def _keeps_losses_apart(self) -> bool:
        """Whether the gradients of each loss are unscaled before they are added up."""
        return len(self.scalers) > 1

    def _backward(self, micro_batches: Sequence[Any]) -> bool:
        """Accumulate gradients under at most one loss scaler. The ranks exchange the sum, in the
        last backward pass. Returns whether it is finite."""
        if self.scalers:
            self._gradients.set_aside()
        self._exchanged_by_ddp.clear()
        parts = len(micro_batches)
        for part, batch in enumerate(micro_batches, 1):
            for loss, scaler, _ in self._backwards(batch, parts, exchange=part == parts):
                (loss if scaler is None else scaler.scale(loss)).backward()
        self._exchange_rest()
        for scaler in self.scalers.values():
            overflow = bool(self._gradients.unscale(scaler))
            scaler.update(overflow)
            return not overflow
        return True

    def _exchange_rest(self) -> None:
        """Average the gradients of networks that the last forward pass of a step does not use."""
        for network, exchanged in self._exchanged_by_ddp.items():
            if not exchanged:
                none = torch.zeros(0, dtype=torch.bool, device=self._task.device)
                self._average(list(network.parameters()), none)

    def _note_forward_pass(self, network: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled():
            self._exchanged_by_ddp[network] = bool(network.require_backward_grad_sync)

    def _backward_with_scalers(self, micro_batches: Sequence[Any]) -> bool:
        """Accumulate gradients under several loss scalers. The gradients of each backward pass are
        kept apart until they are unscaled, and are then added to the others. The ranks exchange the
        sum, and which losses overflowed. Returns whether all are finite."""
        overflows: dict[LossScaler, Tensor] = {}
        for batch in micro_batches:
            for loss, scaler, is_last in self._backwards(batch, len(micro_batches), exchange=False):
                assert scaler is not None
                self._gradients.set_aside()
                scaler.scale(loss).backward(retain_graph=not is_last)
                overflow = self._gradients.unscale(scaler).to(self._task.device)
                overflows[scaler] = overflow | overflows.get(scaler, overflow)
        flags = torch.stack(list(overflows.values()))
        if self._distributed:
            found = self._average(list(parameters_of(self.optimizer)), flags)
        else:
            found = flags.tolist()
        for scaler, overflowed in zip(overflows, found, strict=True):
            scaler.update(overflowed)
        return not any(found)

    def _backwards(
        self, batch: Any, parts: int, *, exchange: bool
    ) -> Iterator[tuple[Tensor, LossScaler | None, bool]]:
        """Run the task on one micro-batch, and yield what goes backward: for each group of losses
        their weighted sum, their scaler, and whether it is the last group of its forward pass, so
        that autograd may free the graph. The losses are divided by `parts`, the number of
        micro-batches. `exchange`: DDP exchanges the gradients of the last forward pass, to which
        those of the others have been added. Raises TrainingError if the task does not yield the
        losses that its phase declares."""
        missing = list(self._groups)
        forward_passes = self._task.losses(self.phase.name, batch, self._networks)
        while True:
            for network in self._distributed:  # as in its `no_sync`
                network.require_backward_grad_sync = exchange and len(missing) == 1
            with self._autocast:
                losses = next(forward_passes, None)
                if losses is None:
                    break
                names = self._names(losses)
                if names not in missing:
                    raise self._other_losses(f"`{_title(tuple(losses))}`")
                missing.remove(names)
                if parts > 1:
                    losses = {name: loss / parts for name, loss in losses.items()}
                for name in names:
                    self.losses[name].add(losses[name])
                groups = self._groups[names]
                sums = [self._weighted_sum(losses, group.names) for group in groups]
            for group, loss in zip(groups, sums, strict=True):
                yield loss, group.scaler, group is groups[-1]
        if missing:
            raise self._other_losses("fewer")

    def _names(self, losses: Losses) -> Group:
        """The names of the losses of a forward pass in the order of the phase: the rounding of
        their sum depends on it. A forward pass that the phase does not declare stays as it is."""
        if not isinstance(losses, Mapping):
            raise self._other_losses(f"a {type(losses).__name__}, which is not a dictionary")
        given = tuple(losses)
        if given not in self._groups:
            for names in self._groups:
                if set(names) == set(given):
                    return names
        return given

    def _weighted_sum(self, losses: Losses, names: Group) -> Tensor:
        """The sum of `names`, each times its weight. A sum is computed in fp32, because a sum of
        half-precision losses may overflow."""
        weights = self.phase.weights
        if len(names) == 1 and names[0] not in weights:
            return losses[names[0]]
        return torch.stack([losses[n].float() * weights.get(n, 1.0) for n in names]).sum()

    def _other_losses(self, what: str) -> TrainingError:
        wanted = ", ".join(map(_title, self._groups))
        return TrainingError(
            f"task {self._task.name}: phase `{self.phase.name}` declares the losses {wanted}, each "
            f"once a micro-batch, but `losses` yields {what}"
        )


class _Frozen:
    """A block in which these parameters get no gradients."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def __enter__(self) -> None:
        for parameter in self._parameters:
            parameter.requires_grad = False

    def __exit__(self, *error: object) -> None:
        for parameter in self._parameters:
            parameter.requires_grad = True


def _title(losses: Group) -> str:
    return "+".join(losses)


def _refuse_shared(networks: Sequence[nn.Module], phase: Phase) -> None:
    """Raise TrainingError if networks share weights: each is wrapped in a DDP of its own, which
    would only exchange the gradients of its own backward passes."""
    seen: set[nn.Parameter] = set()
    for network in networks:
        parameters = set(network.parameters())
        if seen & parameters:
            raise TrainingError(
                f"phase `{phase.name}` updates networks that share weights, which several ranks "
                "cannot train; make them one network"
            )
        seen |= parameters


def _trainable_elsewhere(
    networks: Iterable[nn.Module], updated: Iterable[nn.Module]
) -> list[nn.Parameter]:
    """The trainable parameters of `networks` that none of the `updated` networks has."""
    left_out = {parameter for network in updated for parameter in network.parameters()}
    found = {p: None for network in networks for p in network.parameters() if p.requires_grad}
    return [parameter for parameter in found if parameter not in left_out]


def _check_eps(config: Optimizer, policy: PrecisionPolicy) -> None:
    """Raise SettingError if `eps` is 0 in the precision of the weights. Adam would divide by 0,
    because the square of a small gradient is 0 there, too."""
    if config.name == "sgd" or policy.weight_dtype is None or policy.master_weights:
        return
    if torch.tensor(config.eps, dtype=policy.weight_dtype) == 0:
        raise SettingError(
            f"precision {policy.mode} computes Adam's steps in fp16, where eps {config.eps:g} is 0 "
            "and the weights become NaN; set the eps of the task's optimizer to 1e-4, or use O2"
        )
