"""Processes of this machine as jobs."""

from __future__ import annotations

from pathlib import Path


def id_of_process(pid: int) -> str:
    """The id of a job whose script is this process. Its start tells it from a later one."""
    return f"local-{pid}-{start_time(pid) or 0}"


def start_time(pid: int) -> int | None:
    """When a process started, in ticks since boot; None where it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
