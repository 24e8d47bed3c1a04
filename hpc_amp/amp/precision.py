"""The precision policy: which part of a training computes in which number format."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from hpc_amp.config import schema
from hpc_amp.errors import InputError


class PrecisionError(InputError):
    """This torch or this device does not support the precision."""


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "O1": torch.float16}
_HALF_WEIGHTS = {"O2": torch.float16, "O3": torch.float16}
_SCALES_LOSS = ("fp16", "O1", "O2")


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """The precision of a run on one type of device.

    `mode`: the value of `train.precision.mode`.
    `autocast_dtype`: the type of autocast, or None without autocast.
    `scales_loss`: whether losses are scaled, because fp16 gradients could underflow.
    `weight_dtype`: the type that weights are cast to, or None if they stay fp32.
    """

    mode: str
    device_type: str
    autocast_dtype: torch.dtype | None
    scales_loss: bool
    weight_dtype: torch.dtype | None = None

    @property
    def master_weights(self) -> bool:
        """Whether optimizers work on fp32 copies of half-precision weights."""
        return self.mode == "O2"

    @classmethod
    def create(cls, config: schema.Precision, device: torch.device) -> PrecisionPolicy:
        """The policy of `precision.mode` on `device`. Raises PrecisionError if the device or this
        version of torch does not support it; torch itself would use fp32 and only warn."""
        mode = config.mode
        policy = cls(
            mode, device.type, _AUTOCAST.get(mode), mode in _SCALES_LOSS, _HALF_WEIGHTS.get(mode)
        )
        policy._verify(device)
        return policy

    def _verify(self, device: torch.device) -> None:
        """Raise PrecisionError if the device or torch does not support the precision."""
        if self.mode == "tf32" and device.type != "cuda":
            raise PrecisionError("precision tf32 is a mode of NVIDIA GPUs; on a CPU use fp32")
        if self.mode == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise PrecisionError("this GPU has no bf16; use precision fp16")
        if self.autocast_dtype is None:
            return
        if self._autocast_result(device) != self.autocast_dtype:
            raise PrecisionError(
                f"torch {torch.__version__} has no {self.mode} autocast on {device.type}; "
                "use fp32 or bf16, or a newer torch"
            )

    def _autocast_result(self, device: torch.device) -> torch.dtype | None:
        """The type of a matrix product under this autocast, or None if torch refuses autocast."""
        probe = torch.ones(8, 8, device=device)
        with warnings.catch_warnings():
            # First, because autocast may warn that it has no effect, or raise (torch 2.1).
            warnings.simplefilter("ignore")
            try:
                with self.autocast():
                    return (probe @ probe).dtype
            except RuntimeError:
                return None

    def configure_backends(self) -> None:
        """Set the switches of TF32, which are global to the process: off in `fp32` and `O0`, where
        torch would leave convolutions in TF32, and on otherwise."""
        allow = self.mode not in ("fp32", "O0")
        torch.set_float32_matmul_precision("high" if allow else "highest")
        torch.backends.cudnn.allow_tf32 = allow

    def autocast(self) -> AbstractContextManager[object]:
        """The context for forward passes and losses."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)
