"""Clocks that measure steps without making the host wait for the device."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

Mark = Any
"""A point in time of one clock: seconds of the host, or an event of the device."""


class Clock(Protocol):
    """Marks points in time, and computes the seconds between two of them afterwards."""

    def mark(self) -> Mark:
        """The present point in time."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Seconds from one mark to another. May wait for the device."""


class HostClock:
    """For CPUs: work is complete when a call returns."""

    def mark(self) -> float:
        """The present time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Seconds from one mark to another."""
        return end - begin


class DeviceClock:
    """For GPUs: work is complete some time after a call returns. A mark is an event in the current
    stream, and is reached when the kernels that were queued before it are complete."""

    def mark(self) -> torch.cuda.Event:
        """An event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds from one event to another, measured by the device."""
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000


def clock_of(device: torch.device) -> Clock:
    """The clock for work on `device`."""
    return DeviceClock() if device.type == "cuda" else HostClock()
