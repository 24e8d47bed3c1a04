"""How a precision changes the networks and optimizers of the engine: not at all in fp32 and under
plain autocast, as the levels of apex.amp in O0 to O3. Only the functions that O1 patches are global
to the process."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpc_amp.amp.function_casts import FunctionCasts
from hpc_amp.amp.loss_gradients import LossGradients
from hpc_amp.amp.master_weights import MasterWeights, fp32_value
from hpc_amp.amp.model_casts import cast_model
from hpc_amp.amp.precision import PrecisionPolicy


class ModelPrecision:
    """Prepares networks before DDP wraps them, and then their optimizers.

    The order of calls is `cast` for each network, `gradients` for each optimizer, `complete`, then
    `open` before training and `close` after it.
    """

    def __init__(self, policy: PrecisionPolicy) -> None:
        self.policy = policy
        self._undo = ExitStack()
        self._functions = ExitStack()
        self._masters = MasterWeights() if policy.master_weights else None

    def open(self) -> None:
        """Patch the functions of torch that autocast does not cast at O1, until `close`."""
        if self.policy.mode == "O1":
            FunctionCasts(self.policy.device_type, torch.float16, {}, None, self._functions)

    def cast(self, network: nn.Module) -> None:
        """Cast the weights of a network in place, if the precision has half-precision weights. Its
        state_dict still returns fp32 values; at O2, those of the master weights."""
        if self.policy.weight_dtype is not None:
            cast_model(
                network,
                self.policy.weight_dtype,
                keep_batchnorm_fp32=self.policy.master_weights,
                masters=self._masters,
                undo=self._undo,
            )

    def gradients(self, optimizer: Optimizer) -> LossGradients:
        """The gradients that `optimizer` uses. At O2, it gets master weights to work on."""
        return LossGradients(optimizer, self._masters)

    def value(self, tensor: Tensor) -> Tensor:
        """The fp32 value of a parameter or buffer of a network; at O2, its master weight."""
        return fp32_value(tensor, self._masters)

    def close(self) -> None:
        """Remove the patches of O1. Networks stay as they are."""
        self._functions.close()

    def complete(self) -> None:
        """Free the fp32 values that O2 keeps for master weights. Called when all optimizers
        exist."""
        if self._masters is not None:
            self._masters.forget()
