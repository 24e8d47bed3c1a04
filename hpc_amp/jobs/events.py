"""`state.jsonl`: every change of state of a run, one line each, written by the submitting command
and by the launch script. It outlives the scheduler's memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError


def record_event(run_dir: Path, state: str, **facts: Any) -> None:
    """Append one event. Raises UsageError where this user cannot write there."""
    line = json.dumps({"time": int(time.time()), "state": state, **facts})
    path = run_dir / "state.jsonl"
    try:
        with path.open("a") as out:
            out.write(line + "\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="is the run somebody else's?"
        ) from None


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All events, oldest first. What is not one is left out: a last line that is still being
    written, or the traces of a full disk."""
    try:
        lines = (run_dir / "state.jsonl").read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("state"), str):
            events.append(event)
    return events
