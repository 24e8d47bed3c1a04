"""Waiting for what others do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], Any], what: str, pause: float = 0.02) -> Any:
    """Until the condition holds; its value. The limit only ends what would hang: no test may fail
    because its machine is slow. A look that takes long is followed by a pause twice as long: many
    are commands, and would take a core from what is waited for."""
    deadline = time.monotonic() + 600
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        ended = time.monotonic()
        if ended > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(max(pause, 2 * (ended - began)))


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
    while time.monotonic() < deadline:
        lines = file.read_bytes()[known:].splitlines() if file.exists() else []
        if not all(map(_GOES_ON.search, lines)):
            return
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
