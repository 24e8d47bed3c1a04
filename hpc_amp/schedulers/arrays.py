"""Submit many jobs that differ only in a number: as an array if the scheduler has arrays, else one
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
    """The methods of a scheduler that arrays use: see `hpc_amp.schedulers.base.Scheduler`."""

    def submit(self, script: Path, environ: Mapping[str, str]) -> Submission:
        """Submit a script."""

    def queued(self) -> dict[str, Path]:
        """The user's jobs in the queue, each with a path of its run."""

    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of jobs."""

    def cancel(self, job_id: str) -> None:
        """End a job."""


class Arrays(ABC):
    """The arrays of one scheduler. The tasks of an array are numbered from 0."""

    task: ClassVar[str]
    """A shell expression for the number of the task that a script runs as."""
    shell: ClassVar[str] = "bash -l"
    """The command that runs a launch script."""
    bounds: ClassVar[bool] = True
    """Whether the scheduler accepts a limit for the tasks that run at once."""
    takes_time: ClassVar[bool] = True
    """Whether the scheduler may accept an array after the command that submits it has ended."""
    in_foreground: ClassVar[bool] = False
    """Whether the command that submits a sweep runs its points itself, as processes of this machine
    (`hpc_amp.campaigns.here`). `task` is then `$HPC_AMP_TASK`."""

    one_by_one: ClassVar[bool] = False
    """Whether `submit` submits each task as a job of its own, and yields their ids in the order of
    the tasks."""
    in_turn: ClassVar[bool] = False
    """Whether the tasks run one after the other in the same job."""

    def __init__(self, scheduler: Queue) -> None:
        self.scheduler = scheduler

    def largest(self) -> int:
        """The largest number of tasks of an array: the scheduler's setting, or its default."""
        return 10_000

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Add the directive of an array to `directives`. `tasks` is the number of tasks, and
        `at_once` the limit of tasks that run at once."""
        return list(directives)

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Submit a script, and yield the id of the array, or of each job, as soon as it is known.
        Raises SchedulerError if one is refused, and UnclearError if that is unknown. Default: one
        job, which is an array by its `header`."""
        yield self.scheduler.submit(script, os.environ).job_id

    @abstractmethod
    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task's job, in the form that `query` and the host code's `scheduler_begins`
        use. `job_ids` are those that `submit` yielded. None if the task was not submitted."""

    @abstractmethod
    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query the status of all tasks of arrays, and of jobs, in one request. Raises
        SchedulerError if the scheduler does not answer."""

    def final_status(self, job_ids: Sequence[str]) -> Answers:
        """How jobs ended that are not in the queue any more, in one request. Empty if the scheduler
        keeps no records."""
        return {}

    def array_of(self, job_id: str) -> str:
        """The id that `submit` yielded for the job of a task."""
        return job_id

    @abstractmethod
    def find(self, folder: Path, script: Path) -> list[str]:
        """Search the queue for the ids that `submit` yielded for a script in the folder of a
        campaign. Ids of other scripts in this folder may be among them. Raises SchedulerError if
        the scheduler does not answer."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End the jobs or arrays with the ids that `submit` yielded."""
        for job_id in job_ids:
            self.scheduler.cancel(job_id)

    def id_of_process(self, pid: int) -> str:
        """The job id for a process of this machine. Only called if campaigns run
        `in_foreground`."""
        raise NotImplementedError(f"{type(self).__name__} runs nothing in the foreground")


def bound(tasks: int, at_once: int | None) -> str:
    """The limit of tasks that run at once, in the form that several schedulers use: `%5`. Empty if
    there is no limit or it is not reached."""
    return f"%{at_once}" if at_once is not None and at_once < tasks else ""


class OneByOne(Arrays):
    """One job for each task, for schedulers without arrays. Each job has a script of its own, with
    the header of the sweep's script and the number of the task."""

    task = "$HPC_AMP_TASK"
    bounds = False
    one_by_one = True

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Submit one job after the other, until the scheduler refuses one."""
        for task in range(tasks):
            yield self.scheduler.submit(_script_of_task(script, task), os.environ).job_id

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The task's job is the one with its number."""
        return job_ids[task] if task < len(job_ids) else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Query all jobs in one request."""
        return self.scheduler.query([*arrays, *jobs])

    def find(self, folder: Path, script: Path) -> list[str]:
        """The jobs of the folder, without those that were submitted for a single point. In the
        order of their ids, they are the tasks."""
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

    one_by_one = False
    in_turn = True

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The job of all."""
        return job_ids[0] if job_ids else None


def _script_of_task(script: Path, task: int) -> Path:
    """Write the script of a task, in a folder with the name of the sweep's script. Raises
    UsageError if it cannot be written."""
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
