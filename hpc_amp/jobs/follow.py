"""Show a run's log while it grows, until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.jobs.events import FINAL, is_only_created, read_events
from hpc_amp.jobs.status import GONE, RunStatus, run_statuses
from hpc_amp.schedulers import get_scheduler

_POLL_SECONDS = 0.3


class LogTail:
    """Passes text that is appended to a file to `write`. The file need not exist yet. `offset` is
    the position in bytes where reading begins."""

    def __init__(self, path: Path, write: Callable[[str], object], *, offset: int = 0) -> None:
        self._path = path
        self._write = write
        self._offset = offset

    def pump(self) -> bool:
        """Pass on the text that was appended since the last call. Returns whether there was any."""
        try:
            with self._path.open("rb") as source:
                source.seek(self._offset)
                data = source.read()
        except FileNotFoundError:
            return False
        # A character at the end that is not complete yet is read again at the next call.
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
    on_wait: Callable[[str], object],
) -> RunStatus:
    """Pass a run's log to `write`, from the byte `offset` on, until the run has ended. Returns its
    final status. `on_wait` is called with a line that says why the job waits in the queue, and
    again when the reason changes. Raises UsageError for a run that its user has to submit, and
    HpcAmpError if the run is moved or removed meanwhile."""
    if is_only_created(run_dir):
        raise UsageError(
            f"{run_dir} was made by `hpc-amp render --create`, and its script has not started",
            hint="submit the script, and wait until the scheduler has started it",
        )
    tail = LogTail(run_dir / "logs" / "job.log", write, offset=offset)
    next_ask = 0.0
    told = ""
    while True:
        tail.pump()
        state_changed = _final_event(run_dir)
        if state_changed or time.monotonic() >= next_ask:
            (status,) = run_statuses([run_dir])
            if status.state in FINAL:
                # The last lines may have been written after the call of `pump` above.
                tail.pump()
                if status.reason == GONE:
                    raise HpcAmpError(f"{run_dir} is not there any more: {GONE}")
                return status
            reason = f"{status.state}: {status.reason}" if status.reason else status.state
            if status.state in ("pending", "unknown") and reason != told:
                who = "the run" if status.job_id is None else f"job {status.job_id}"
                on_wait(f"{who} is {reason}")
                told = reason
            next_ask = time.monotonic() + get_scheduler(status.scheduler).ask_seconds
        time.sleep(_POLL_SECONDS)


def _final_event(run_dir: Path) -> bool:
    """Whether the last event is an end. Does not query the scheduler."""
    return any(event["state"] in FINAL for event in read_events(run_dir)[-1:])
