"""Loss scaling for fp16 gradients (Micikevicius et al., 2018, section 3.2).

Whether gradients overflowed is read on the host before the optimizer's step, and the step is
skipped if they did. torch passes `found_inf` to the kernel of a fused optimizer instead, which is
not used here: if the first step overflows, which is normal in fp16, `SGD(momentum=..., fused=True)`
keeps an uninitialised momentum buffer, and the second step makes the weights NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpc_amp.amp.norm import by_device_and_dtype
from hpc_amp.config import schema


class ScaleFloorError(RuntimeError):
    """Gradients overflow although the loss scale is at its lower limit."""


class LossScaler:
    """The scale of one loss. It doubles after `growth_interval` steps without overflow and is
    halved after an overflow, within `[min_scale, max_scale]`; a `static_scale` never changes.

    For one update, call `scale(loss).backward()` any number of times, then `unscale(gradients)`,
    then `update(overflow)`.

    Attributes: `value`, the scale; `clean_steps`, the steps since the scale last changed;
    `skipped_steps`; `skipped_in_a_row`; `name`, for messages.
    """

    def __init__(self, config: schema.Precision, *, name: str = "loss") -> None:
        self.name = name
        self.config = config
        self.value = float(config.static_scale or config.init_scale)
        self.clean_steps = 0
        self.skipped_steps = 0
        self.skipped_in_a_row = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss in fp32, times the scale. A scaled half-precision loss could overflow."""
        return loss.float() * self.value

    @property
    def dynamic(self) -> bool:
        """Whether the scale may change."""
        return self.config.static_scale is None

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide `gradients` by the scale in place.

        Returns a scalar tensor on their device that is true if any of them is infinite or NaN. It
        has to be equal on all ranks: either the gradients of all ranks have been reduced before, or
        the results are afterwards.
        """
        finite: Tensor | None = None
        for group in by_device_and_dtype(gradients):
            torch._foreach_mul_(group, 1.0 / self.value)
            ok = torch.isfinite(_magnitude(group))
            finite = ok if finite is None else finite & ok.to(finite.device)
        return torch.zeros((), dtype=torch.bool) if finite is None else ~finite

    def update(self, overflow: bool) -> None:
        """Adjust the scale after an update that was made (`overflow` is false) or skipped.

        Raises ScaleFloorError after 20 overflows in a row at the lowest scale: the gradients
        themselves are infinite or NaN then, and no scale can help.
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
        """The state that a resumed run needs to continue with the same scale."""
        return {
            "scale": self.value,
            "clean_steps": self.clean_steps,
            "skipped_steps": self.skipped_steps,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.value = float(state["scale"])
        self.clean_steps = int(state["clean_steps"])
        self.skipped_steps = int(state["skipped_steps"])
        self.skipped_in_a_row = int(state["skipped_in_a_row"])

    def keep_in_bounds(self) -> None:
        """Move the scale into the limits of this scaler. Called after `load_state_dict` with the
        state of a scaler with other settings."""
        if self.config.static_scale is not None:
            self.value = self.config.static_scale
        else:
            # The initial scale may be above the limit of its growth.
            highest = max(self.config.max_scale, self.config.init_scale)
            self.value = min(max(self.value, self.config.min_scale), highest)


def _magnitude(tensors: list[Tensor]) -> Tensor:
    """A scalar tensor that is finite only if all values of `tensors` are. All have one type."""
    if tensors[0].dtype is torch.float16:
        # The fused norm of fp16 tensors is fp16, and overflows for valid gradients. This sum is
        # fp32, which no sum of finite fp16 values can overflow.
        return torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors]).sum()
    # One fused pass over all of them. It overflows only for finite gradients that are so large that
    # they could not be used either.
    return torch.stack(torch._foreach_norm(tensors)).sum(dtype=torch.float32)
