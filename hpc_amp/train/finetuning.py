"""Fine-tuning: a copy of a trained generator learns from the references of the sequences that it
then makes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpc_amp.amp.model_precision import ModelPrecision
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.scaler import ScaleFloorError
from hpc_amp.config.schema import Precision
from hpc_amp.data.order import generator
from hpc_amp.gan.data.batches import PairedBatch
from hpc_amp.tasks.base import Networks
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.losses import RecentLosses
from hpc_amp.train.update import PhaseUpdate


class FineTuning:
    """A copy of the networks of a run, which learns from the references of one sequence and then,
    from the beginning, from those of the next.

    `task`: one that can be fine-tuned: with the methods `finetuning`, `learning` and
    `finetuning_batch`.
    `networks`: those of the run, with fp32 weights. They stay as they are.
    `policy`: the precision of the run, on the device of the networks.

    Attribute: `networks`, the copy, in evaluation mode and without gradients.

    Raises ModelError if the weights of the perceptual network cannot be read.
    """

    def __init__(self, task: Any, networks: Networks, policy: PrecisionPolicy) -> None:
        if policy.weight_dtype is not None:  # O2 and O3, as for images without fine-tuning
            policy = PrecisionPolicy.create(Precision(mode="fp32"), task.device)
        self._task, self._policy = task, policy
        self._phase = task.finetuning()
        self._trained = {name: network.state_dict() for name, network in networks.items()}
        self.networks = {name: copy.deepcopy(network) for name, network in networks.items()}
        for network in self.networks.values():
            network.eval().requires_grad_(False)
        self._learning = task.learning(self.networks)

    def run(self, references: PairedBatch, steps: int, *key: int | str) -> Mapping[str, Tensor]:
        """Make the copy equal to the networks of the run again, and train it for `steps` steps on
        `references`. Random numbers depend on `key` alone.

        A step that a loss scaler skips does not count. Not to be called under autocast, which would
        keep its casts of the first weights. Returns the losses of each step by name, float32
        [steps]. Raises TrainingError if they are not finite.
        """
        for name, network in self.networks.items():
            network.load_state_dict(self._trained[name])
            network.train()
        for parameter in self._learning:
            parameter.requires_grad = True
        precision = ModelPrecision(self._policy)
        update = PhaseUpdate(
            self._task,
            self._phase,
            self.networks,
            lambda network: network,
            precision,
            dataclasses.replace(self._task.train, log_every=steps),
        )
        stream = generator(*key)
        precision.open()
        try:
            with torch.enable_grad():
                done = 0
                while done < steps:
                    batch = self._task.finetuning_batch(references, stream)
                    if update.run([batch], lambda: None):
                        done += 1
                        _check(update.losses, done)
                    else:
                        for losses in update.losses.values():
                            losses.forget_step()
        except ScaleFloorError as error:
            raise TrainingError(f"fine-tuning: {error}") from None
        finally:
            precision.close()
            for network in self.networks.values():
                network.eval()
            for parameter in self._learning:
                parameter.requires_grad = False
                parameter.grad = None
        return {name: losses.recent() for name, losses in update.losses.items()}


def _check(losses: Mapping[str, RecentLosses], step: int) -> None:
    """Raise TrainingError if a loss of the last step is not finite."""
    for name, recent in losses.items():
        if not recent.recent()[-1].isfinite():
            raise TrainingError(
                f"fine-tuning: the loss {name} is not finite in step {step}",
                hint="take fewer steps",
            )
