"""The interface of schedulers."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from hpc_amp.errors import SchedulerError

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.jobs.plan import Plan


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the scheduler says of a job now."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    """In the scheduler's words: why it waits, or how it ended."""


class Scheduler(ABC):
    """Directives and commands of one scheduler. Holds no state."""

    name: ClassVar[str]
    template: ClassVar[str]
    """Launch script template below `jobs/`."""
    marker: ClassVar[str]
    """What a directive line starts with, such as `#SBATCH`."""
    launchers: ClassVar[tuple[str, ...]]
    """Launchers that work under this scheduler."""

    @abstractmethod
    def default_launcher(self, job: Job) -> str:
        """The launcher for `launch.method: auto`."""

    @abstractmethod
    def directives(self, plan: Plan) -> list[str]:
        """The options of the header, each quoted as this scheduler's directive parser reads it,
        without the marker. The site's and the user's own lines are included as they are."""

    @abstractmethod
    def check(self, plan: Plan) -> None:
        """Raise ConfigError for what this scheduler cannot do."""

    @abstractmethod
    def submit(self, script: Path, environ: Mapping[str, str]) -> str:
        """Hand in a script. Returns the job id; raises SchedulerError where it is refused."""

    @abstractmethod
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of jobs, in one request. A job that is not in the answer is one that the
        scheduler no longer (or not yet) knows. Raises SchedulerError where it does not answer:
        silence is not an end."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a job. No error where it has ended already."""


def merge_directives(generated: Sequence[tuple[str, str]], plan: Plan) -> list[str]:
    """Generated (option, text) pairs less what site and user skip, then the lines they add.

    Skipping touches generated lines only, and compares the whole option (`--gpus-per-node`)."""
    skipped = {*plan.site.skip_directives, *plan.job.job.skip_directives}
    kept = [text for option, text in generated if option not in skipped]
    return [*kept, *plan.site.directives, *plan.job.job.directives]


def run_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's command. Raises SchedulerError where it is not there or hangs."""
    try:
        return subprocess.run(
            command,
            env=environ,
            cwd=folder,
            timeout=timeout,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"`{command[0]}` is not on this machine's PATH",
            hint="submit from a login node, or say site=local to run here",
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"`{command[0]}` did not answer within {timeout:g} s") from None


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed command said, as one line."""
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines()]
    return " / ".join(line for line in lines if line) or f"exit status {result.returncode}"
