"""Points in time between which steps are measured, without holding the device up."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

Mark = Any
"""A point in time of one clock: seconds of the host, or an event of the device."""


class Clock(Protocol):
    """Marks points in time, and tells the seconds between two of them when all is over."""

    def mark(self) -> Mark:
        """The present point in time."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """From one mark to another, in seconds. May wait for the device."""


class HostClock:
    """For CPUs, whose work is done when the call returns."""

    def mark(self) -> float:
        """The host's clock."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """The difference."""
        return end - begin


class DeviceClock:
    """For GPUs, which work behind the host: an event in the stream is reached when the kernels that
    were queued before it are done. Nothing waits for it until somebody asks for the seconds."""

    def mark(self) -> torch.cuda.Event:
        """An event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """The device's own time from one event to another."""
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000


def clock_of(device: torch.device) -> Clock:
    """The clock that tells when work on `device` is done."""
    return DeviceClock() if device.type == "cuda" else HostClock()
