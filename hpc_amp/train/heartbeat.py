"""Heartbeats: `attempts/N/heartbeat/rank-00003`, one line of JSON for each rank.

rank, host, pid
pids    the PID namespace in which `pid` is valid: a container may have its own
born    start time of the process from /proc, since process numbers are reused
step, phase
moved   time of the last progress
time    time of this line; both in seconds since the epoch
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

_LINE = 256  # a fixed size, so that a new line covers the old one completely


class Heartbeat:
    """The heartbeat file of this rank. If the disk refuses it, the run goes on without one."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.who = {"rank": rank, "host": socket.gethostname(), "pid": os.getpid()}
        self.who |= {"pids": _pid_namespace(), "born": _born(_stat(os.getpid()))}
        self._file: int | None = None
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank-{rank:05d}"
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def write(self, step: int, phase: str, moved: float) -> None:
        """Overwrite the line with a single write. `moved` is in seconds since the epoch."""
        now = time.time()
        facts = {"step": step, "phase": phase, "moved": round(moved, 3), "time": round(now, 3)}
        line = json.dumps({**self.who, **facts}).ljust(_LINE - 1) + "\n"
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, line.encode(), 0)

    def close(self) -> None:
        """Close the file. The last line stays in it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def read_heartbeats(folder: Path) -> list[dict[str, Any]]:
    """The heartbeats of all ranks, ordered by rank. Those that cannot be read are left out."""
    beats = []
    for path in sorted(folder.glob("rank-*")):
        with contextlib.suppress(OSError, ValueError):
            beats.append(json.loads(path.read_text()))
    return beats


def dead_ranks(folder: Path) -> list[str]:
    """Describe the ranks whose processes have died on this machine."""
    beats = read_heartbeats(folder)
    return [in_words(beat, "dead") for beat in beats if process_state(beat) == "dead"]


def in_words(beat: dict[str, Any], state: str) -> str:
    """Describe the rank of a heartbeat and its state, such as
    `rank 3 (node1, process 17, step 40: dead)`."""
    where = f"{beat['host']}, process {beat['pid']}, step {beat['step']}"
    return f"rank {beat['rank']} ({where}: {state})"


def process_state(beat: dict[str, Any]) -> str | None:
    """The state of the process that wrote a heartbeat: `running`, `stopped` (by SIGSTOP or a
    debugger) or `dead`. None if the process is on another machine or in another PID namespace."""
    if beat["host"] != socket.gethostname() or beat["pids"] != _pid_namespace():
        return None
    fields = _stat(beat["pid"])
    if _born(fields) != beat["born"] or fields[0] in ("Z", "X"):
        return "dead"
    return "stopped" if fields[0] in ("T", "t") else "running"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _born(fields: list[str]) -> int | None:
    """When a process started, in clock ticks since the machine started."""
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on. The name before them may hold any text."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
