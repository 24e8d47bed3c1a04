"""What a precision does to the networks and optimizers of the engine: nothing in fp32 and under
plain autocast, the levels of apex.amp in O0 to O3. Nothing here is state of the process but the
patched functions of O1."""

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
    """Prepares networks before DDP wraps them, and then their optimizers."""

    def __init__(self, policy: PrecisionPolicy) -> None:
        self.policy = policy
        self._undo = ExitStack()
        self._functions = ExitStack()
        self._masters = MasterWeights() if policy.master_weights else None

    def open(self) -> None:
        """Patch the functions of torch that O1 casts and autocast does not, until `close`."""
        if self.policy.mode == "O1":
            FunctionCasts(self.policy.device_type, torch.float16, {}, None, self._functions)

    def cast(self, network: nn.Module) -> None:
        """Cast a network's weights in place, where the precision has half-precision weights. Its
        state_dict gives fp32 values all the same: those of the master weights at O2."""
        if self.policy.weight_dtype is not None:
            cast_model(
                network,
                self.policy.weight_dtype,
                keep_batchnorm_fp32=self.policy.master_weights,
                masters=self._masters,
                undo=self._undo,
            )

    def gradients(self, optimizer: Optimizer) -> LossGradients:
        """The gradients that `optimizer` steps on; at O2 it gets master weights to work on."""
        return LossGradients(optimizer, self._masters)

    def value(self, tensor: Tensor) -> Tensor:
        """What a parameter or buffer of a network is in fp32, with all digits that a master has."""
        return fp32_value(tensor, self._masters)

    def close(self) -> None:
        """Give the functions of torch back that O1 has patched. Networks stay as they are."""
        self._functions.close()

    def complete(self) -> None:
        """Free the saved fp32 values of O2: call it when all optimizers exist."""
        if self._masters is not None:
            self._masters.forget()
