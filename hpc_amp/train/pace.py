"""The speed of training, without evaluations and checkpoints, and how long it waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

import torch

_WARMUP_STEPS = 5

T = TypeVar("T")


class Pace:
    """Measures steps per second of training time. Evaluations and checkpoints are excluded, and so
    are the first steps, in which memory is allocated and kernels are chosen."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mark = self._now()
        self._pending = 0.0
        self._steps = 0
        self._counted_steps = 0
        self._counted_seconds = 0.0
        self._first: float = 0.0
        self._waited = 0.0

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def pause(self) -> None:
        """Stop the clock, before something that is not training."""
        self._pending += self._now() - self._mark

    def resume(self) -> None:
        """Start the clock again."""
        self._mark = self._now()

    def lap(self, steps: int) -> float:
        """Steps per second since the last call, in which time `steps` were made."""
        now = self._now()
        seconds = self._pending + (now - self._mark)
        self._mark, self._pending = now, 0.0
        self._steps += steps
        if self._steps > max(_WARMUP_STEPS, steps):
            self._counted_steps += steps
            self._counted_seconds += seconds
        self._first = self._first or (steps / seconds if seconds > 0 else 0.0)
        return steps / seconds if seconds > 0 else 0.0

    def watch(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the same batches, and measure how long each one is waited for."""
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - asked
            if batch is None:
                return
            yield batch

    def waited(self) -> float:
        """Seconds that the host has waited for batches since the last call."""
        seconds, self._waited = self._waited, 0.0
        return seconds

    @property
    def steps_per_second(self) -> float:
        """The mean of the run so far. The first lap only counts if there is no other."""
        if not self._counted_seconds:
            return self._first
        return self._counted_steps / self._counted_seconds
