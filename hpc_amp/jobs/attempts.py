"""Read the attempts of a run from its files.

attempts/N/owner          job, host, process of the launch script, and start time
attempts/N/alive          touched every 3 s while the launch script runs
attempts/N/from           step of the newest checkpoint when the attempt began
attempts/N/end_at         when the scheduler ends the job, in seconds since the epoch
attempts/N/stop           if it exists, the ranks save and stop
attempts/N/progress.json  progress of the training; written by the ranks
attempts/N/outcome.json   how the attempt ended; written by the ranks
attempts/N/ended          written when no process of the attempt is left
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.files import read_json, without_surrogates

# The events of state.jsonl with which the launch script ends an attempt, and their texts.
_ENDINGS = {
    "finished": "finished",
    "checkpointed": "stopped at a checkpoint",
    "continued": "stopped at a checkpoint, to continue in the next attempt",
    "preempted": "preempted; the run continues in the next attempt",
    "terminated": "the job was ended, by its user or by a preemption",
    "killed": "the job was ended, by its user or by its scheduler",
    "requeued": "the scheduler took the nodes away and starts the job again",
    "retried": "failed, and is tried again",
    "failed": "failed",
}
_NO_REASON = "ended without a message: it was killed, or its node failed"
# Seconds without a touch of `alive` after which a job that has ended counts as dead. The launch
# script uses the same number.
_QUIET_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. Times are in seconds since the epoch. `end` is None while the attempt runs.
    Unknown values are None."""

    number: int
    job_id: str | None
    host: str | None
    start: int | None
    end: int | None
    from_step: int | None
    to_step: int | None
    state: str
    """`running`, the state that the script recorded at the end, `cancelled`, or `lost` if the
    script recorded no end."""
    ending: str
    """How and why it ended, in words. Empty while the attempt runs."""

    def to_plain(self) -> dict[str, Any]:
        """The attempt as a dictionary of JSON values."""
        return asdict(self)


def read_attempts(
    run_dir: Path, events: Sequence[dict[str, Any]], *, at_work: bool
) -> list[Attempt]:
    """Read all attempts of a run, oldest first. `events` are those of `read_events`. `at_work` says
    whether the run may be running: the newest attempt then counts as running if no file and no
    event shows its end."""
    folders = _folders(run_dir)
    attempts = []
    for folder in folders:
        number = int(folder.name)
        own_events = [event for event in events if event.get("attempt") == number]
        is_running = at_work and folder == folders[-1]
        cancelled = _cancelled(events, number)
        attempts.append(_attempt(folder, own_events, cancelled, at_work=is_running))
    return attempts


def newest_attempt(run_dir: Path) -> Path | None:
    """The folder of the newest attempt, or None before the first attempt."""
    folders = _folders(run_dir)
    return folders[-1] if folders else None


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that still runs although its job has ended for the scheduler: for example, the
    scheduler lost contact to a node, or an administrator deleted the job."""

    attempt: int
    job_id: str
    host: str
    pid: int | None
    """The process of the launch script on `host`."""

    def __str__(self) -> str:
        return (
            f"its job {self.job_id} has ended for the scheduler, but attempt {self.attempt} still "
            f"gives signs of life on {self.host}"
        )


def find_orphan(run_dir: Path, scheduler: str) -> Orphan | None:
    """Find an orphan. Call it for a run whose job has ended for the scheduler. The newest attempt
    is an orphan if its launch script touched `alive` in the last 10 s and did not record its end.
    Returns None if there is no orphan."""
    folder = newest_attempt(run_dir)
    if folder is None or (folder / "ended").exists():
        return None
    from hpc_amp.schedulers import get_scheduler

    owner = read_json(folder / "owner")
    host = str(owner.get("host", "unknown"))
    if host == socket.gethostname() and get_scheduler(scheduler).one_machine:
        return None  # the scheduler is this machine's list of processes, which is always right
    silence = _silence(folder)
    if silence is None or silence >= _QUIET_SECONDS:
        return None
    pid = owner.get("pid")
    return Orphan(
        int(folder.name),
        str(owner.get("job_id", "unknown")),
        host,
        pid if isinstance(pid, int) else None,
    )


def _silence(folder: Path) -> float | None:
    """Seconds since `alive` was touched, or None if it was never touched. The present time is the
    file server's if this user may write there, else this machine's."""
    try:
        # Opening the file makes NFS fetch its attributes, which may be cached, from the server.
        with (folder / "alive").open("rb") as alive:
            touched = os.fstat(alive.fileno()).st_mtime
    except OSError:
        return None
    try:
        with tempfile.TemporaryFile(dir=folder) as now:
            return os.fstat(now.fileno()).st_mtime - touched
    except OSError:
        return time.time() - touched


def _folders(run_dir: Path) -> list[Path]:
    found = [path for path in (run_dir / "attempts").glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def _attempt(
    folder: Path, events: Sequence[dict[str, Any]], cancelled: bool, *, at_work: bool
) -> Attempt:
    owner, outcome = read_json(folder / "owner"), read_json(folder / "outcome.json")
    progress = read_json(folder / "progress.json")
    last = next((event for event in reversed(events) if event["state"] in _ENDINGS), None)
    start = owner.get("time") or next((event.get("time") for event in events), None)
    ended = (folder / "ended").exists()
    if last is None and at_work and not ended:
        state, ending = "running", ""
    elif last is None or (cancelled and last["state"] in ("terminated", "killed", "failed")):
        state = "cancelled" if cancelled else "lost"
        ending = "cancelled" if cancelled else _NO_REASON
    else:
        state, ending = last["state"], _ENDINGS[last["state"]]
    why = without_surrogates(str(outcome.get("reason") or (last or {}).get("reason") or ""))
    steps = [facts["step"] for facts in (progress, outcome) if isinstance(facts.get("step"), int)]
    return Attempt(
        number=int(folder.name),
        job_id=owner.get("job_id"),
        host=owner.get("host"),
        start=start,
        end=None if state == "running" else _end(folder, last),
        from_step=read_number(folder / "from"),
        to_step=max(steps, default=None),
        state=state,
        ending=f"{ending}: {why}" if ending and why and state != "finished" else ending,
    )


def _end(folder: Path, last: dict[str, Any] | None) -> int | None:
    """When the attempt ended. If its end was not recorded, the time of its last sign of life."""
    if last is not None and isinstance(last.get("time"), int):
        return int(last["time"])
    times = [
        int(path.stat().st_mtime) for path in (folder / "ended", folder / "alive") if path.exists()
    ]
    return times[0] if times else None


def _cancelled(events: Sequence[dict[str, Any]], number: int) -> bool:
    """Whether the run was cancelled after this attempt began and before the next one."""
    began = [i for i, event in enumerate(events) if event.get("attempt") == number]
    later = [i for i, event in enumerate(events) if int(event.get("attempt") or 0) > number]
    within = events[began[0] if began else len(events) : later[0] if later else None]
    return any(event["state"] == "cancelled" for event in within)


def read_number(path: Path) -> int | None:
    """Read a file that contains one whole number. Returns None if it is missing or damaged."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def seconds_to_go(run_dir: Path, attempt: Path) -> int | None:
    """Seconds to the last step of a running attempt, at its present speed. None if no progress is
    recorded yet, or the program records none."""
    progress = read_json(attempt / "progress.json")
    train = (read_json(run_dir / "job.json").get("job") or {}).get("train") or {}
    try:
        steps = progress["total_steps"] - progress["step"]
        batch = train.get("batch_size") or progress["global_batch"]
        return int(steps * batch / progress["samples_per_second"])
    except (KeyError, TypeError, ZeroDivisionError):
        return None
