"""The precision policy: what runs in which number format, decided once for the whole run."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from hpc_amp.config import schema


class PrecisionError(RuntimeError):
    """This torch or this device cannot compute in the precision asked for."""


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "O1": torch.float16}
_HALF_WEIGHTS = {"O2": torch.float16, "O3": torch.float16}
_SCALES_LOSS = ("fp16", "O1", "O2")


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """`autocast_dtype` is None where there is no autocast, `weight_dtype` where weights stay fp32;
    `scales_loss` where gradients could underflow (fp16)."""

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
        """The policy of `precision.mode` on `device`. Raises PrecisionError where the device or
        this torch cannot do it: torch would fall back to fp32 with a warning."""
        mode = config.mode
        policy = cls(
            mode, device.type, _AUTOCAST.get(mode), mode in _SCALES_LOSS, _HALF_WEIGHTS.get(mode)
        )
        policy._verify(device)
        return policy

    def _verify(self, device: torch.device) -> None:
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
        """What a matrix product gives under this autocast; None where torch refuses it."""
        probe = torch.ones(8, 8, device=device)
        with warnings.catch_warnings():
            # Before autocast: it may warn that it does nothing, or raise (torch 2.1).
            warnings.simplefilter("ignore")
            try:
                with self.autocast():
                    return (probe @ probe).dtype
            except RuntimeError:
                return None

    def configure_backends(self) -> None:
        """Set the process-wide TF32 switches: on in `tf32`, off in `fp32` and `O0`, where torch
        would leave convolutions in TF32. Under autocast the little that stays fp32 may use it."""
        allow = self.mode not in ("fp32", "O0")
        torch.set_float32_matmul_precision("high" if allow else "highest")
        torch.backends.cudnn.allow_tf32 = allow

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward pass and loss."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)
