"""The base class of trackers that send each point of metrics.jsonl once."""

from __future__ import annotations

import itertools
import time as clock
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpc_amp.trackers.base import Tracker
from hpc_amp.trackers.run import Point, points

_CHUNK = 100
"""So many lines of metrics.jsonl are sent together."""


class Sender(Tracker):
    """Sends the points of a run that have not been sent yet.

    Steps that are trained again after a crash are not sent again: their values are the same. Points
    that an earlier attempt or this one could not send are sent with the next one, from
    metrics.jsonl.

    Attributes: `sent`, the last step that was sent of each curve and picture, by its name. The
    subclass knows what earlier attempts have sent, and sets it in its constructor.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        super().__init__(run_dir, first_step)
        self.sent: dict[str, int] = {}
        self._is_open = False
        self._is_behind = True

    def open(self) -> None:
        """Called before the first points are sent, and again if it has failed."""

    @abstractmethod
    def send(self, points: Sequence[Point]) -> None:
        """Send points. All of them are new. An error means that they may be sent again."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Send points that were measured now."""
        self.report(step, clock.time(), values)

    def report(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Send points, and before them those of metrics.jsonl that have not been sent."""
        if self._is_behind:
            self.catch_up()
        self._is_behind = True  # if this fails
        self._send_new([Point(step, time, values)])
        self._is_behind = False

    def catch_up(self) -> int:
        """Send the points of metrics.jsonl that have not been sent. Returns their number."""
        self._ensure_open()
        count = 0
        lines = points(self.run_dir)
        while chunk := list(itertools.islice(lines, _CHUNK)):
            count += self._send_new(chunk)
        return count

    def _ensure_open(self) -> None:
        if not self._is_open:
            self.open()
            self._is_open = True

    def _send_new(self, chunk: Iterable[Point]) -> int:
        """Send those of some points that are new. Returns the number of their values."""
        last = dict(self.sent)
        new = []
        for point in chunk:
            values = {}
            for curve, value in point.values.items():
                name = self.accepted(curve)
                if point.step > last.get(name, -1):
                    values[name] = value
                    last[name] = point.step
            if values:
                new.append(Point(point.step, point.time, values))
        if new:
            self.send(new)
            self.sent.update(last)
            self.remember()
        return sum(len(point.values) for point in new)

    def accepted(self, name: str) -> str:
        """The name that a curve has at the place where points are sent to. By default, its own."""
        return name

    def remember(self) -> None:
        """Called after points were sent, to keep `sent` for later attempts."""
