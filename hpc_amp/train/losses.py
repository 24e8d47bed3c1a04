"""The losses since the last report, on the device, so that a step costs no synchronisation."""

from __future__ import annotations

import torch
from torch import Tensor


class RecentLosses:
    """One loss of each step since it was last cleared, at most `capacity` of them."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._values = torch.zeros(capacity, device=device)
        self.count = 0
        self._now = self._values[0]

    def begin(self) -> None:
        """A new step begins. Where nobody takes the losses, they start anew."""
        if self.count == len(self._values):
            self.clear()
        self._now = self._values[self.count]
        self.count += 1

    def add(self, loss: Tensor) -> None:
        """Add a part of the loss of the present step."""
        self._now += loss.detach()

    def recent(self) -> Tensor:
        """The losses so far: float32 [count]."""
        return self._values[: self.count]

    def forget_step(self) -> None:
        """Remove the loss of the present step, which must not count (a step of warm-up)."""
        self._now.zero_()
        self.count -= 1

    def restore(self, values: Tensor) -> None:
        """Take over what `recent` returned."""
        self.clear()
        kept = values[-len(self._values) :]
        self.count = len(kept)
        self._values[: self.count].copy_(kept)

    def clear(self) -> None:
        """Forget them."""
        self._values.zero_()
        self.count = 0

    def first_bad(self) -> int | None:
        """Index of the first that is infinite or NaN, or None. Waits for the device."""
        bad = (~self.recent().isfinite()).nonzero()
        return int(bad[0]) if len(bad) else None
