"""`attempts/N/heartbeat/rank-00003`: a sign of life of each rank, a line of JSON.

{"rank", "host", "pid", "born", "step", "phase", "moved", "time"}: `time` is that of this line and
`moved` that of the last step, both in seconds since the epoch; `born` is the process's start as
/proc tells it, since process numbers come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

_LINE = 256  # of one size, so that a line never holds the rest of a longer one


class Heartbeat:
    """The file of this rank. A disk that does not take it costs the sign of life, not the run."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.who = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid()}
        self.who["born"] = born(os.getpid())
        self._file: int | None = None
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank-{rank:05d}"
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def write(self, step: int, phase: str, moved: float) -> None:
        """Overwrite the line, in one write."""
        now = time.time()
        facts = {"step": step, "phase": phase, "moved": round(moved, 3), "time": round(now, 3)}
        line = json.dumps({**self.who, **facts}).ljust(_LINE - 1) + "\n"
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, line.encode(), 0)


def read_heartbeats(folder: Path) -> list[dict[str, Any]]:
    """The signs of life of all ranks, by rank; those that cannot be read are left out."""
    beats = []
    for path in sorted(folder.glob("rank-*")):
        with contextlib.suppress(OSError, ValueError):
            beats.append(json.loads(path.read_text()))
    return beats


def born(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since its boot; None if there is no
    such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped, by SIGSTOP or a debugger."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
