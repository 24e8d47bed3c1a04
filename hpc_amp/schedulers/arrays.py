"""Many jobs that differ only in a number: one array where a scheduler has arrays, and else one job
after the other."""

from __future__ import annotations

import itertools
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from hpc_amp.errors import UsageError
from hpc_amp.schedulers.answers import JobStatus, Submission

Answers = Mapping[str, JobStatus]


class Queue(Protocol):
    """What arrays need of their scheduler: see `hpc_amp.schedulers.base.Scheduler`."""

    def submit(self, script: Path, environ: Mapping[str, str]) -> Submission:
        """Hand in a script."""

    def queued(self) -> dict[str, Path]:
        """The user's jobs, each with a path that tells which run it belongs to."""

    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of jobs."""

    def cancel(self, job_id: str) -> None:
        """End a job."""


class Arrays(ABC):
    """Arrays of one scheduler. Tasks of an array are counted from 0."""

    task: ClassVar[str]
    """Shell: the number of the task that a script runs as."""
    shell: ClassVar[str] = "bash -l"
    """What runs a launch script."""
    bounds: ClassVar[bool] = True
    """Whether the scheduler accepts a limit for the tasks that run at once."""
    takes_time: ClassVar[bool] = True
    """Whether the scheduler may accept an array after the command that submits it has ended."""
    in_foreground: ClassVar[bool] = False
    """Whether the command that submits a sweep runs its points itself, as processes of this machine
    (`hpc_amp.campaigns.here`). Then `task` is `$HPC_AMP_TASK`."""

    in_turn: ClassVar[bool] = False
    """Whether the tasks run one after the other in the same job."""

    def __init__(self, scheduler: Queue) -> None:
        self.scheduler = scheduler

    def largest(self) -> int:
        """The most tasks that one array may have, as the scheduler says or does by default."""
        return 10_000

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """The directives of a script that runs as so many tasks."""
        return list(directives)

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Hand in a script; the id of the array, or of every job, as soon as it is known. Raises
        SchedulerError where one is refused, UnclearError where that is not known. Here: one job,
        whose `header` makes it an array."""
        yield self.scheduler.submit(script, os.environ).job_id

    @abstractmethod
    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task's job, as `query` gives it and `scheduler_begins` of the host code finds
        it; None where there is none."""

    @abstractmethod
    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """The status of all tasks of arrays, and of jobs, in one request. Raises SchedulerError
        where the scheduler does not answer."""

    def last_words(self, job_ids: Sequence[str]) -> Answers:
        """How jobs ended that the scheduler no longer lists, in one request; nothing where a run's
        own files tell it."""
        return {}

    def array_of(self, job_id: str) -> str:
        """The id that `submit` gave for the job of a task."""
        return job_id

    @abstractmethod
    def find(self, folder: Path, script: Path) -> list[str]:
        """What `submit` of a script in the folder of a campaign gave, as far as the queue shows it,
        perhaps with that of other scripts in there. Raises SchedulerError where the scheduler does
        not answer."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End what `submit` submitted."""
        for job_id in job_ids:
            self.scheduler.cancel(job_id)

    def id_of_process(self, pid: int) -> str:
        """The job id of a process of this machine, where campaigns run `in_foreground`."""
        raise NotImplementedError(f"{type(self).__name__} runs nothing in the foreground")


def bound(tasks: int, at_once: int | None) -> str:
    """The limit of tasks that run at once, as the range of several schedulers takes it: `%5`."""
    return f"%{at_once}" if at_once is not None and at_once < tasks else ""


class OneByOne(Arrays):
    """For a scheduler without arrays: a job a task. Each has a script of its own: the header of the
    array's script, and the number of the task."""

    task = "$HPC_AMP_TASK"
    bounds = False

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job after the other, until the scheduler accepts no more."""
        for task in range(tasks):
            yield self.scheduler.submit(_script_of_task(script, task), os.environ).job_id

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The job of that number."""
        return job_ids[task] if task < len(job_ids) else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """One request for all."""
        return self.scheduler.query([*arrays, *jobs])

    def find(self, folder: Path, script: Path) -> list[str]:
        """The jobs of the folder that are not those of points by themselves. In the order of their
        ids they are the tasks."""
        return [
            job_id
            for job_id, path in self.scheduler.queued().items()
            if folder in (path, *path.parents) and folder / "points" not in path.parents
        ]


class SingleJobs(OneByOne):
    """Scripts of a single task each, whether a scheduler has arrays or not."""

    task = "0"

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job, by the script as it is."""
        yield self.scheduler.submit(script, os.environ).job_id


class InOneJob(SingleJobs):
    """All tasks in one job, one after the other."""

    in_turn = True

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The job of all."""
        return job_ids[0] if job_ids else None


def _script_of_task(script: Path, task: int) -> Path:
    """Write the script of a task, in a folder of the array's name. Raises UsageError where that is
    not possible."""
    path = script.parent / script.stem / f"{task:04d}.sh"
    try:
        lines = script.read_text().splitlines()
        header = itertools.takewhile(lambda line: line.startswith("#"), lines)
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "\n".join(header)
            + f"\n\nexport HPC_AMP_TASK={task}\n"
            + f"# shellcheck source=/dev/null\nsource {shlex.quote(str(script))}\n"
        )
        path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path
