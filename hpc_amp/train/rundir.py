"""The run directory, as a job uses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths of one run and of its present attempt."""

    path: Path
    attempt: int

    @property
    def job_file(self) -> Path:
        """The job with all settings."""
        return self.path / "job.json"

    @property
    def attempt_path(self) -> Path:
        """The folder of this attempt."""
        return self.path / "attempts" / str(self.attempt)

    @property
    def outcome_file(self) -> Path:
        """Says how this attempt ended."""
        return self.attempt_path / "outcome.json"

    @property
    def heartbeats(self) -> Path:
        """The folder of the heartbeats of this attempt's ranks."""
        return self.attempt_path / "heartbeat"

    @property
    def timing(self) -> Path:
        """The folder of the step times that this attempt's ranks measured."""
        return self.attempt_path / "timing"

    @property
    def successor(self) -> Path:
        """The folder of the next attempt. If it exists, this attempt has lost the run."""
        return self.path / "attempts" / str(self.attempt + 1)

    @property
    def stop_file(self) -> Path:
        """If this file exists, this attempt saves and stops."""
        return self.attempt_path / "stop"
