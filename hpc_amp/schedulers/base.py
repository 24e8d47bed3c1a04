"""The interface of schedulers."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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


NOT_IN_QUEUE = JobStatus("ended", "it is not in the queue")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that the scheduler accepted."""

    job_id: str
    remarks: str = ""
    """What the scheduler said besides, which the user should see."""


class Scheduler(ABC):
    """Directives and commands of one scheduler. Holds no state."""

    name: ClassVar[str]
    template: ClassVar[str]
    """Launch script template below `jobs/`."""
    marker: ClassVar[str]
    """What a directive line starts with, such as `#SBATCH`."""
    launchers: ClassVar[tuple[str, ...]]
    """Launchers that work under this scheduler."""
    chains: ClassVar[bool] = False
    """Whether a run goes on in another job, since the same one cannot be requeued. Then jobs can
    wait for one another (`job.chain`)."""
    signals_ranks: ClassVar[bool] = True
    """Whether ranks can count on hearing of a cancellation and having time to save."""

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
    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Hand in a script, to start after another job or when it is released, where the scheduler
        `chains`. Raises SchedulerError where it is refused."""

    @abstractmethod
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of jobs, in one request. A job that is not in the answer is one that the
        scheduler no longer (or not yet) knows. Raises SchedulerError where it does not answer:
        silence is not an end."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a job. No error where it has ended already."""

    def release(self, job_id: str) -> None:
        """Let a job start that was submitted `held`."""
        raise NotImplementedError(f"{self.name} jobs are not held")

    def last_words(self, job_id: str, run_dir: Path) -> JobStatus:
        """How a job ended that the scheduler no longer lists, as far as it can be found out."""
        return NOT_IN_QUEUE


def merge_directives(
    generated: Sequence[tuple[str, str]], plan: Plan, options: Callable[[str], set[str]]
) -> list[str]:
    """Generated (option, text) pairs less what site and user skip, then the lines they add.

    Skipping touches generated lines only, and compares the whole option (`--gpus-per-node`). A line
    of the job replaces one of the site that sets the same `options`, and both replace a generated
    one: what schedulers do with a repetition differs.
    """
    skipped = {*plan.site.skip_directives, *plan.job.job.skip_directives}
    lines = [({name}, text) for name, text in generated if name not in skipped]
    for added in (plan.site.directives, plan.job.job.directives):
        new = [(options(text), text) for text in added]
        replaced = set().union(*(names for names, _ in new))
        lines = [line for line in lines if not line[0] or not line[0] <= replaced]
        lines += new
    return [text for _, text in lines]


# What finds the user, the programs and the cluster.
_KEPT = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME"),
    *("MODULEPATH", "MODULESHOME", "XDG_RUNTIME_DIR"),
)


def submission_environment(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """What of the submitting shell's environment the scheduler's commands get to see, and so,
    perhaps, the job. Everything else is baked into the script."""
    kept = {name: environ[name] for name in (*_KEPT, *more) if name in environ}
    kept.setdefault("PATH", os.defpath)
    return kept


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
