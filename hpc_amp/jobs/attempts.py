"""The attempts of a run, as its files tell them: who worked on it, from which step to which, and
how it ended.

    attempts/N/owner          the job, the host, the launch script's process and when it began
    attempts/N/alive          touched every 3 s as long as the script lives
    attempts/N/from           step of the newest checkpoint at the beginning; made then
    attempts/N/end_at         when the scheduler ends the job, in seconds since the epoch
    attempts/N/stop           whoever makes it asks the ranks to save and stop
    attempts/N/progress.json  where the training is; written by the job, like the next
    attempts/N/outcome.json   how it ended in the job's own words
    attempts/N/ended          nothing of the attempt is at work any more
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.schedulers import get_scheduler

# How the script says that an attempt is over; what it says there is for readers of state.jsonl.
_ENDINGS = {
    "finished": "finished",
    "checkpointed": "stopped at a checkpoint",
    "continued": "stopped at a checkpoint, to go on in the next attempt",
    "preempted": "preempted; the run goes on in the next attempt",
    "terminated": "the job was ended, by its user or by a preemption",
    "killed": "the job was ended, by its user or by its scheduler",
    "requeued": "the scheduler took the nodes away and starts the job again",
    "retried": "failed, and is tried again",
    "failed": "failed",
}
_NO_REASON = "ended without a message: it was killed, or its node failed"
# As in the launch script: so long without a sign of life, and nothing is left of a job that ended.
_QUIET_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. Times are in seconds since the epoch, `end` is None while it is at work, steps
    are None where they are not known."""

    number: int
    job_id: str | None
    host: str | None
    start: int | None
    end: int | None
    from_step: int | None
    to_step: int | None
    state: str
    """`running`, what the script recorded at the end, `cancelled`, or `lost` where it could not."""
    ending: str
    """How and why it ended, in words; empty while it is at work."""

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_attempts(
    run_dir: Path, events: Sequence[dict[str, Any]], *, at_work: bool
) -> list[Attempt]:
    """All attempts in order. `at_work` says whether the newest one may still be, if nothing tells
    its end."""
    folders = _folders(run_dir)
    return [
        _attempt(
            folder,
            [event for event in events if event.get("attempt") == int(folder.name)],
            _cancelled(events, int(folder.name)),
            at_work=at_work and folder == folders[-1],
        )
        for folder in folders
    ]


def newest_attempt(run_dir: Path) -> Path | None:
    """The folder of the newest attempt; None before the first."""
    folders = _folders(run_dir)
    return folders[-1] if folders else None


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt at work whose job has ended, as far as its scheduler knows: that lost sight of a
    node, or was told to forget the job."""

    attempt: int
    job_id: str
    host: str
    pid: int | None
    """Of its launch script on `host`."""

    def __str__(self) -> str:
        return (
            f"its job {self.job_id} has ended for the scheduler, but attempt {self.attempt} still "
            f"gives signs of life on {self.host}"
        )


def find_orphan(run_dir: Path, scheduler: str) -> Orphan | None:
    """The newest attempt of a run whose job has ended, if its launch script is at work all the
    same: it touched `alive` within the last seconds, and has not said that it is over."""
    folder = newest_attempt(run_dir)
    if folder is None or (folder / "ended").exists():
        return None
    owner = read_json(folder / "owner")
    host = str(owner.get("host", "unknown"))
    if host == socket.gethostname() and get_scheduler(scheduler).one_machine:
        return None  # this machine's own list of processes is never wrong
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
    """Seconds since an attempt gave a sign of life, by the file server's clock where this user may
    write there, else by ours. None where it never gave one."""
    try:
        with (folder / "alive").open("rb") as alive:  # asks the server, where attributes are cached
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
    why = outcome.get("reason") or (last or {}).get("reason")
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
    """When it ended; where it could not say so, its last sign of life."""
    if last is not None and isinstance(last.get("time"), int):
        return int(last["time"])
    times = [
        int(path.stat().st_mtime) for path in (folder / "ended", folder / "alive") if path.exists()
    ]
    return times[0] if times else None


def _cancelled(events: Sequence[dict[str, Any]], number: int) -> bool:
    """Whether the run was cancelled after this attempt began and before the next."""
    began = [i for i, event in enumerate(events) if event.get("attempt") == number]
    later = [i for i, event in enumerate(events) if int(event.get("attempt") or 0) > number]
    within = events[began[0] if began else len(events) : later[0] if later else None]
    return any(event["state"] == "cancelled" for event in within)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file that may be missing, be damaged, or be replaced at this moment."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_number(path: Path) -> int | None:
    """A whole number that is all of a file; None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
