"""Losses since the last report. They stay on the device, so a step does not wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


class RecentLosses:
    """The values of one loss in the steps since it was cleared, at most `capacity` of them."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._values = torch.zeros(capacity, device=device)
        self._each = [self._values[index] for index in range(capacity)]
        self.count = 0
        self._now = self._each[0]

    def begin(self) -> None:
        """Begin a step. If there is no room because the losses were not read, they are cleared."""
        if self.count == len(self._each):
            self.clear()
        self._now = self._each[self.count]
        self.count += 1

    def add(self, loss: Tensor) -> None:
        """Add a part of the loss of this step: a scalar, already divided by the number of parts."""
        self._now += loss.detach()

    def recent(self) -> Tensor:
        """The loss of each step so far: float32 [count]."""
        return self._values[: self.count]

    def forget_step(self) -> None:
        """Remove the loss of this step, which does not count."""
        self._now.zero_()
        self.count -= 1

    def restore(self, values: Tensor) -> None:
        """Restore what `recent` returned."""
        self.clear()
        kept = values[-len(self._each) :]
        self.count = len(kept)
        self._values[: self.count].copy_(kept)

    def clear(self) -> None:
        """Forget all losses."""
        self._values.zero_()
        self.count = 0

    def first_bad(self) -> int | None:
        """The index of the first value that is infinite or NaN, or None. Waits for the device."""
        bad = (~self.recent().isfinite()).nonzero()
        return int(bad[0]) if len(bad) else None
