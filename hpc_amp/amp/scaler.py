"""Loss scaling for fp16 gradients (Micikevicius et al. 2018, section 3.2).

The verdict "overflow or not" is read on the host before the optimizer's step, and an overflowing
step is never taken. torch's way for fused optimizers, to pass `found_inf` into the kernel, is not
used: `SGD(momentum=..., fused=True)` then keeps an uninitialised momentum buffer when the first
step overflows, which is the normal case in fp16, and the second step makes the weights NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hpc_amp.config import schema


class ScaleFloorError(RuntimeError):
    """Gradients overflow although the loss scale is at its floor."""


class LossScaler:
    """The scale of one loss: times two after `growth_interval` clean steps, halved on overflow,
    within `[min_scale, max_scale]`; with `static_scale` it never changes.

    One update is: `scale(loss).backward()` (any number of times, at the same scale), then
    `unscale(gradients)`, then `update(overflow)`.
    """

    def __init__(self, config: schema.Precision, *, name: str = "loss") -> None:
        self.name = name
        self.config = config
        self.value = float(config.static_scale or config.init_scale)
        self.clean_steps = 0
        self.skipped_steps = 0
        self.skipped_in_a_row = 0

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` in fp32 times the scale: a scaled half-precision loss would overflow by itself."""
        return loss.float() * self.value

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return self.config.static_scale is None

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide `gradients` by the scale in place. Returns a scalar tensor on their device that is
        true where any of them is infinite or NaN. Gradients of all ranks must have been reduced
        before, so that every rank comes to the same verdict."""
        finite: Tensor | None = None
        for group in _by_device_and_dtype(gradients):
            torch._foreach_mul_(group, 1.0 / self.value)
            ok = torch.isfinite(_magnitude(group))
            finite = ok if finite is None else finite & ok.to(finite.device)
        return torch.zeros((), dtype=torch.bool) if finite is None else ~finite

    def update(self, overflow: bool) -> None:
        """Move the scale after an update that was taken (`overflow` false) or skipped.

        Raises ScaleFloorError after 20 overflows in a row with the scale at its floor: the
        gradients themselves are then infinite or NaN and no scale can help.
        """
        if not overflow:
            self.skipped_in_a_row = 0
            self.clean_steps += 1
            if self.dynamic and self.clean_steps >= self.config.growth_interval:
                self.value = min(self.value * 2.0, self.config.max_scale)
                self.clean_steps = 0
            return
        self.clean_steps = 0
        self.skipped_steps += 1
        self.skipped_in_a_row += 1
        floor = self.config.static_scale or self.config.min_scale
        if self.value <= floor and self.skipped_in_a_row >= 20:
            raise ScaleFloorError(
                f"the gradients of {self.name} overflowed {self.skipped_in_a_row} times in a row "
                f"with the loss scale at its floor of {floor:g}: the loss is not finite, or the "
                "learning rate too high; try bf16, a lower rate, or clip_norm"
            )
        if self.dynamic:
            self.value = max(self.value / 2.0, self.config.min_scale)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with exactly this scale."""
        return {
            "scale": self.value,
            "clean_steps": self.clean_steps,
            "skipped_steps": self.skipped_steps,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.value = float(state["scale"])
        self.clean_steps = int(state["clean_steps"])
        self.skipped_steps = int(state["skipped_steps"])
        self.skipped_in_a_row = int(state["skipped_in_a_row"])

    def keep_in_bounds(self) -> None:
        """After `load_state_dict` of a scaler with another configuration: its scale may be one that
        this one cannot have."""
        if self.config.static_scale is not None:
            self.value = self.config.static_scale
        else:
            # It may begin above the highest scale that it would grow to.
            highest = max(self.config.max_scale, self.config.init_scale)
            self.value = min(max(self.value, self.config.min_scale), highest)


def _magnitude(tensors: list[Tensor]) -> Tensor:
    """A scalar tensor that is finite only if every value of `tensors` is; they share a type."""
    if tensors[0].dtype is torch.float16:
        # The fused norm of fp16 tensors is fp16 and overflows for good gradients; this sum is fp32,
        # where no number of finite fp16 values can overflow.
        return torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors]).sum()
    # One fused pass over all of them. It may overflow to inf for huge finite gradients, which could
    # not be used either.
    return torch.stack(torch._foreach_norm(tensors)).sum(dtype=torch.float32)


def _by_device_and_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
