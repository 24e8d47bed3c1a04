"""Job ids for processes of this machine."""

from __future__ import annotations

from pathlib import Path


def id_of_process(pid: int) -> str:
    """The id of the job whose script is a process: `local-<pid>-<start>`. The start time
    distinguishes it from a later process with the same number."""
    return f"local-{pid}-{start_time(pid) or 0}"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot. None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
