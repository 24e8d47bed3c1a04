"""A tracker that is served by a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from hpc_amp.trackers.base import Tracker
from hpc_amp.trackers.secret import without_passwords

_ROOM = 10_000
"""So many reports may wait for a tracker. If it takes none for so long, it is not used any more."""

_Report = tuple[str, tuple[Any, ...]]
"""A method of `Tracker`, and its arguments."""


class TrackerThread:
    """Makes a tracker and calls its methods, in a thread, so that a tracker that waits for a server
    does not make the training wait. The tracker may be anyone's, and raise anything.

    `make`: makes the tracker.
    `opened`: called with the tracker when it has been made.
    `incomplete`: called with an OSError, after which the tracker is still used.
    `failed`: called once, with a text, when the tracker is not used any more.

    These functions are called by the thread, or by the one that reports.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        *,
        opened: Callable[[Tracker], None],
        incomplete: Callable[[OSError], None],
        failed: Callable[[str], None],
    ) -> None:
        self._make, self._opened, self._incomplete = make, opened, incomplete
        self._failed = failed
        self._is_used = True
        self._reports: queue.Queue[_Report | None] = queue.Queue(_ROOM)
        self._thread = threading.Thread(target=self._serve, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> None:
        """Have the thread call a method of the tracker. Returns at once."""
        if self._is_used:
            try:
                self._reports.put_nowait((method, arguments))
            except queue.Full:
                self._give_up("it does not take any more reports")

    def ask_to_close(self) -> None:
        """Have the thread close the tracker and end. Nothing is reported afterwards."""
        try:
            self._reports.put_nowait(None)
        except queue.Full:
            self._give_up("it does not take any more reports")

    def wait(self, until: float) -> bool:
        """Wait until the tracker is closed, at most until `time.monotonic` is `until`. Returns
        whether it is, or is not used any more."""
        self._thread.join(max(0.0, until - time.monotonic()))
        return not (self._thread.is_alive() and self._is_used)

    def _serve(self) -> None:
        try:
            tracker = self._make()
            self._opened(tracker)
            is_open = True
            while is_open:
                report = self._reports.get()
                is_open = report is not None and self._is_used
                method, arguments = report if report and is_open else ("close", ())
                try:
                    getattr(tracker, method)(*arguments)
                except OSError as error:
                    self._incomplete(error)
        except Exception as error:
            text = without_passwords(" ".join(str(error).split()))
            self._give_up(f"{type(error).__name__}: {text}")

    def _give_up(self, why: str) -> None:
        if self._is_used:
            self._is_used = False
            self._failed(why)
