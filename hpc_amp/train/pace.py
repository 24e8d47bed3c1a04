"""How fast the training is, without what is not training."""

from __future__ import annotations

import time

import torch

_WARMUP_STEPS = 5


class Pace:
    """Steps per second over training time only: evaluation and saving are paused out, and the
    first steps (allocation, kernel selection, start-up of other ranks) do not count."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mark = self._now()
        self._pending = 0.0
        self._steps = 0
        self._counted_steps = 0
        self._counted_seconds = 0.0
        self._first: float = 0.0

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def pause(self) -> None:
        """Stop the clock."""
        self._pending += self._now() - self._mark

    def resume(self) -> None:
        """Let the clock go on."""
        self._mark = self._now()

    def lap(self, steps: int) -> float:
        """Steps per second since the last lap, of which `steps` were made."""
        now = self._now()
        seconds = self._pending + (now - self._mark)
        self._mark, self._pending = now, 0.0
        self._steps += steps
        if self._steps > max(_WARMUP_STEPS, steps):
            self._counted_steps += steps
            self._counted_seconds += seconds
        self._first = self._first or (steps / seconds if seconds > 0 else 0.0)
        return steps / seconds if seconds > 0 else 0.0

    @property
    def steps_per_second(self) -> float:
        """Mean over the run so far. The first lap counts only while there is no other."""
        if not self._counted_seconds:
            return self._first
        return self._counted_steps / self._counted_seconds
