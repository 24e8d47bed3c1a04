"""`state.jsonl`: the changes of state of a run, one JSON object per line. The commands of hpc-amp
and the launch script write it. Unlike the scheduler's records, it is never deleted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError

FINAL = frozenset(("finished", "failed", "cancelled", "checkpointed", "lost"))
"""The states in which a run has ended."""
_KINDS: dict[str, Any] = {
    "time": int,
    "attempt": int,
    "array": int,
    "job_id": (str, int),
    "folder": str,
}
"""The types of the facts that readers compute with."""
_BEGINNING = b'{"time": '
"""What each line begins with."""
DAMAGED = "damaged"
"""The key of an event from which `read_events` has removed facts of a wrong type."""


def record_event(run_dir: Path, state: str, **facts: Any) -> None:
    """Append an event with the present time. Raises UsageError if the file cannot be written."""
    line = json.dumps({"time": int(time.time()), "state": state, **facts})
    path = run_dir / "state.jsonl"
    try:
        with path.open("a") as out:
            out.write(line + "\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="check that the run is yours and that the disk is not full",
        ) from None


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Read all events, oldest first. Lines that are not an event are left out, such as an
    incomplete last line that is being written, or was when the disk became full; the next event
    follows it on the same line. Facts of a wrong type are left out, too, and the event is marked
    with DAMAGED."""
    try:
        lines = (run_dir / "state.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            try:
                event = json.loads(line[max(0, line.rfind(_BEGINNING)) :])
            except ValueError:
                continue
        if isinstance(event, dict) and isinstance(event.get("state"), str):
            events.append(_without_wrong_types(event))
    return events


def _without_wrong_types(event: dict[str, Any]) -> dict[str, Any]:
    wrong = [name for name in event if not isinstance(event[name], _KINDS.get(name, object))]
    if not wrong:
        return event
    return {name: event[name] for name in event if name not in wrong} | {DAMAGED: True}


def is_only_created(run_dir: Path) -> bool:
    """Whether a run was created for a script that its user submits, and this has not started."""
    events = read_events(run_dir)
    return bool(events) and events[-1]["state"] == "created"


def own_events(run_dir: Path) -> list[dict[str, Any]]:
    """The events of a run. Those before `hpc-amp resume --here` on a copy are the original's."""
    events = read_events(run_dir)
    copied = [at for at, event in enumerate(events) if event.get("copied_from")]
    return events[copied[-1] :] if copied else events
