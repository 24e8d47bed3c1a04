"""`state.jsonl`: every change of state of a run, one line each, written by the submitting command
and by the launch script. It outlives the scheduler's memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


def record_event(run_dir: Path, state: str, **facts: Any) -> None:
    """Append one event."""
    line = json.dumps({"time": int(time.time()), "state": state, **facts})
    with (run_dir / "state.jsonl").open("a") as out:
        out.write(line + "\n")


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All events, oldest first. A last line that is still being written is left out."""
    try:
        lines = (run_dir / "state.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events
