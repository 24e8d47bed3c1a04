"""Showing a run's log as it grows, until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.status import FINAL, RunStatus, run_statuses
from hpc_amp.schedulers import get_scheduler

_POLL_SECONDS = 0.3


class LogTail:
    """Hands over what was appended to a file since the last look. It need not exist yet."""

    def __init__(self, path: Path, write: Callable[[str], object], *, offset: int = 0) -> None:
        self._path = path
        self._write = write
        self._offset = offset

    def pump(self) -> bool:
        """Write what is new; returns whether there was anything."""
        try:
            with self._path.open("rb") as source:
                source.seek(self._offset)
                data = source.read()
        except FileNotFoundError:
            return False
        # A half-written character at the end waits for its other half.
        if _ends_inside(data):
            text = data.decode(errors="ignore")
            self._offset += len(text.encode())
        else:
            text = data.decode(errors="replace")
            self._offset += len(data)
        if text:
            self._write(text)
        return bool(text)


def _ends_inside(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def follow(
    run_dir: Path,
    write: Callable[[str], object],
    *,
    offset: int = 0,
    on_wait: Callable[[RunStatus], object],
) -> RunStatus:
    """Write the run's log from `offset` on until it has ended; returns how. `on_wait` is told the
    status each time that the scheduler was asked."""
    tail = LogTail(run_dir / "logs" / "job.log", write, offset=offset)
    next_ask = 0.0
    while True:
        tail.pump()
        state_changed = _final_event(run_dir)
        if state_changed or time.monotonic() >= next_ask:
            (status,) = run_statuses([run_dir])
            if status.state in FINAL:
                # The last lines may have come between the two looks.
                tail.pump()
                return status
            on_wait(status)
            next_ask = time.monotonic() + get_scheduler(status.scheduler).ask_seconds
        time.sleep(_POLL_SECONDS)


def _final_event(run_dir: Path) -> bool:
    """Whether the last event is an end. Cheap: no scheduler is asked."""
    return any(event["state"] in FINAL for event in read_events(run_dir)[-1:])
