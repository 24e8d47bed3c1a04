"""The run directory as the job sees it."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run, and of the attempt that is under way."""

    path: Path
    attempt: int

    @property
    def job_file(self) -> Path:
        """The resolved job."""
        return self.path / "job.json"

    @property
    def attempt_path(self) -> Path:
        """Folder of this attempt."""
        return self.path / "attempts" / str(self.attempt)

    @property
    def outcome_file(self) -> Path:
        """How this attempt ended."""
        return self.attempt_path / "outcome.json"

    @property
    def heartbeats(self) -> Path:
        """Folder of the signs of life of this attempt's ranks."""
        return self.attempt_path / "heartbeat"

    @property
    def timing(self) -> Path:
        """Folder of what this attempt's ranks measured of their steps."""
        return self.attempt_path / "timing"

    @property
    def successor(self) -> Path:
        """Folder of the attempt after this one. Where it exists, this one has lost the run."""
        return self.path / "attempts" / str(self.attempt + 1)

    @property
    def stop_file(self) -> Path:
        """A file whose existence asks this attempt to save and stop."""
        return self.attempt_path / "stop"


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part. Of one that
    the disk does not take nothing stays: it would take the room that is left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON in the same way."""
    replace_text(path, json_text(content))


def json_text(content: dict[str, Any]) -> str:
    """JSON with each key on a line of its own."""
    return json.dumps(content, indent=1) + "\n"
