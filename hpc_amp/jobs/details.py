"""The details of a run: its attempts, its progress, its remaining time, and its ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.files import read_json
from hpc_amp.jobs.attempts import Attempt, read_attempts, read_number, seconds_to_go
from hpc_amp.jobs.change import Past, read_history
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.git import CodeState, read_code_state
from hpc_amp.jobs.places import origin
from hpc_amp.jobs.status import RunStatus, run_statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAge:
    """The oldest of the newest heartbeats of all ranks of a running attempt."""

    ranks: int
    """Number of ranks that have written a heartbeat."""
    rank: int
    host: str
    step: int | None
    phase: str
    age: int
    """In seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """The facts that `hpc-amp status RUN` shows. Times are in seconds. They are None if they are
    unknown or the run is not running."""

    status: RunStatus
    attempts: list[Attempt]
    seconds_to_go: int | None
    """Time to the last step at the present speed."""
    time_left: int | None
    """Time to the time limit of the job."""
    heartbeat: HeartbeatAge | None
    changes: list[Past]
    """The changes of its settings by `hpc-amp resume`."""
    code: CodeState | None
    """The state of the user's code in git when the run was submitted. None: it is unknown."""

    def to_plain(self) -> dict[str, Any]:
        """The details as one dictionary of JSON values; the keys of the status are at its top."""
        beat = self.heartbeat
        return {
            **self.status.to_plain(),
            "attempts": [attempt.to_plain() for attempt in self.attempts],
            "seconds_to_go": self.seconds_to_go,
            "time_left": self.time_left,
            "heartbeat": {name: getattr(beat, name) for name in beat.__slots__} if beat else None,
            "changes": [change.to_plain() for change in self.changes],
            "code": self.code._asdict() if self.code else None,
        }


def run_details(folders: Sequence[Path]) -> list[RunDetails]:
    """Read the details of runs, given by their run directories. Each scheduler is queried once."""
    return [
        _details(folder, status)
        for folder, status in zip(folders, run_statuses(folders), strict=True)
    ]


def _details(folder: Path, status: RunStatus) -> RunDetails:
    elsewhere = origin(folder, read_json(folder / "job.json")) is not None
    running = status.state in ("running", "unknown") and not elsewhere
    attempts = read_attempts(folder, read_events(folder), at_work=running)
    at_work = bool(attempts) and attempts[-1].state == "running"
    newest = folder / "attempts" / str(attempts[-1].number if attempts else 0)
    end = read_number(newest / "end_at")
    return RunDetails(
        status=status,
        attempts=attempts,
        seconds_to_go=seconds_to_go(folder, newest) if at_work else None,
        time_left=max(0, end - int(time.time())) if at_work and end is not None else None,
        heartbeat=_heartbeat(newest) if at_work else None,
        changes=read_history(folder),
        code=read_code_state(folder),
    )


def _heartbeat(attempt: Path) -> HeartbeatAge | None:
    beats = [read_json(path) for path in (attempt / "heartbeat").glob("rank-*")]
    beats = [beat for beat in beats if isinstance(beat.get("time"), (int, float))]
    if not beats:
        return None
    oldest = min(beats, key=lambda beat: float(beat["time"]))
    return HeartbeatAge(
        ranks=len(beats),
        rank=int(oldest.get("rank", 0)),
        host=str(oldest.get("host", "")),
        step=oldest.get("step"),
        phase=str(oldest.get("phase", "")),
        age=max(0, int(time.time() - oldest["time"])),
    )
