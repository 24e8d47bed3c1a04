"""Waiting for what others do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], Any], what: str, pause: float = 0.02) -> Any:
    """Until the condition holds; its value. The limit only ends what would hang: no test may fail
    because its machine is slow. A look that takes long is followed by a pause twice as long, since
    many are commands; and the longer it waits, the longer are the pauses, up to a fiftieth of that.
    Else the looks would take a core from what is waited for."""
    first = time.monotonic()
    deadline = first + 600
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        ended = time.monotonic()
        if ended > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(max(pause, 2 * (ended - began), (ended - first) / 50))


def wait_for_file(path: Path) -> None:
    """Until it is there."""
    wait_until(path.exists, str(path))


def size_of(file: Path) -> int:
    """In bytes; 0 where it is not there."""
    return file.stat().st_size if file.exists() else 0


_GOES_ON = re.compile(
    rb'"state": "(queued|submitted|started|continued|retried|preempted|requeued)"'
)


def wait_for_news(file: Path, known: int, seconds: float = 5.0) -> None:
    """Until a state.jsonl has a line behind the first `known` bytes by which the run does not just
    go on, but no longer than `seconds`.

    Between two calls of `hpc-amp status` until a run has ended: a loop around that command would
    take a core from the job that it waits for. What a run comes to stands in this file first.
    """
    deadline = time.monotonic() + seconds
    read_to = known
    while time.monotonic() < deadline:
        if size_of(file) > read_to:
            lines = file.read_bytes()[read_to:].splitlines(keepends=True)
            if not all(map(_GOES_ON.search, lines)):
                return
            read_to += sum(map(len, lines))
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
