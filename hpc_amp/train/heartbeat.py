"""`attempts/N/heartbeat/rank-00003`: a sign of life of each rank, a line of JSON.

{"rank", "host", "pid", "pids", "born", "step", "phase", "moved", "time"}: `time` is that of this
line and `moved` that of the last step, both in seconds since the epoch. `born` is the process's
start as /proc tells it, since process numbers come back, and `pids` the namespace in which `pid`
means something: a container may have its own.
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
        self.who |= {"pids": _pid_namespace(), "born": _born(_stat(os.getpid()))}
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

    def close(self) -> None:
        """The last line stays."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def read_heartbeats(folder: Path) -> list[dict[str, Any]]:
    """The signs of life of all ranks, by rank; those that cannot be read are left out."""
    beats = []
    for path in sorted(folder.glob("rank-*")):
        with contextlib.suppress(OSError, ValueError):
            beats.append(json.loads(path.read_text()))
    return beats


def dead_ranks(folder: Path) -> list[str]:
    """The ranks whose processes have died on this machine, in words."""
    beats = read_heartbeats(folder)
    return [in_words(beat, "dead") for beat in beats if process_state(beat) == "dead"]


def in_words(beat: dict[str, Any], state: str) -> str:
    """Which rank gave a sign of life, and what has become of it."""
    where = f"{beat['host']}, process {beat['pid']}, step {beat['step']}"
    return f"rank {beat['rank']} ({where}: {state})"


def process_state(beat: dict[str, Any]) -> str | None:
    """What has become of the process that gave a sign of life: `running`, `stopped` (by SIGSTOP or
    a debugger) or `dead`; None where that cannot be seen from here."""
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
    """The start of a process, in clock ticks since the machine's."""
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
