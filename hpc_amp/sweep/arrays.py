"""How each scheduler runs many jobs that differ only in a number: as one array where it has
arrays, and one by one where it has none."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.schedulers import JobStatus, Scheduler, get_scheduler
from hpc_amp.schedulers.base import (
    NOT_IN_QUEUE,
    AwayError,
    asked_again,
    complaint,
    hand_in,
    run_command,
    submission_environment,
)
from hpc_amp.schedulers.cobalt import scheduler as cobalt
from hpc_amp.schedulers.pbs import scheduler as pbs
from hpc_amp.schedulers.slurm import scheduler as slurm

Answers = Mapping[str, JobStatus]


class Arrays(ABC):
    """Arrays of one scheduler. Tasks of an array are counted from 0."""

    name: ClassVar[str]
    task: ClassVar[str]
    """Shell: the number of the task that a script runs as."""
    job_id: ClassVar[str]
    """Shell: the id of its job, as the scheduler's commands take it."""
    shell: ClassVar[str] = "bash -l"
    """What runs a launch script."""
    bounds: ClassVar[bool] = True
    """Whether it can be told how many tasks may run at once."""
    takes_time: ClassVar[bool] = True
    """Whether it may take an array after the command that submits it is gone."""

    @property
    def scheduler(self) -> Scheduler:
        """Whose arrays these are."""
        return get_scheduler(self.name)

    def largest(self) -> int:
        """The most tasks that one array may have, as the scheduler says or does by default."""
        return 10_000

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """The directives of a script that runs as so many tasks."""
        return list(directives)

    @abstractmethod
    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Hand in a script; the id of the array, or of every job, as soon as it is known. Raises
        SchedulerError where one is refused, UnclearError where that is not known."""

    @abstractmethod
    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The id of a task's job, as `query` and `job_id` give it; None where there is none."""

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
        """What `submit` of a script in the folder of a sweep gave, as far as the queue shows it,
        perhaps with that of other scripts in there. Raises SchedulerError where the scheduler does
        not answer."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End what `submit` submitted."""
        for job_id in job_ids:
            self.scheduler.cancel(job_id)


class SlurmArrays(Arrays):
    """`sbatch --array`."""

    name = "slurm"
    task = "${SLURM_ARRAY_TASK_ID:-0}"
    job_id = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"

    def largest(self) -> int:
        """MaxArraySize, which is one more than the largest index; 1001 unless the site says so."""
        try:
            said = run_command(["scontrol", "show", "config"]).stdout
        except SchedulerError:
            said = ""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
        return int(found[1]) if found and int(found[1]) > 0 else 1001

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """Behind the others: of two `--array` the last counts."""
        return [*directives, f"--array=0-{tasks - 1}{_bound(tasks, at_once)}"]

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job with an id for all."""
        yield self.scheduler.submit(script, os.environ).job_id

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """`41_7`."""
        return f"{job_ids[0]}_{task}" if job_ids else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """`squeue -r`, which lists every task by itself, also those that wait."""
        user = str(os.getuid())  # not every node knows everybody's name
        result = run_command(["squeue", "-h", "-r", "-u", user, "--states=all", "-o", "%i|%T|%r"])
        if result.returncode != 0:
            raise SchedulerError(f"squeue does not answer: {complaint(result)}")
        rows = (line.strip().split("|", 2) for line in result.stdout.splitlines())
        return {row[0]: slurm.job_status(row[1], row[2]) for row in rows if len(row) == 3}

    def array_of(self, job_id: str) -> str:
        """`41` of `41_7`, and of the `41_[8-99]` that wait."""
        return job_id.partition("_")[0]

    def find(self, folder: Path, script: Path) -> list[str]:
        """By the working directory, which those of points have not."""
        jobs = self.scheduler.queued().items()
        return [self.array_of(job_id) for job_id, path in jobs if path == folder]


class PbsArrays(Arrays):
    """`qsub -J`, which takes no array of a single job: that is an ordinary one."""

    name = "pbs"
    task = "${PBS_ARRAY_INDEX:-0}"
    job_id = "$PBS_JOBID"

    def header(self, directives: Sequence[str], tasks: int, at_once: int | None) -> list[str]:
        """A log for each task: PBS lets them all write into a file from its beginning."""
        if tasks == 1:
            return list(directives)
        logs = [
            re.sub(r"job\.log('?)$", r"^array_index^.log\1", line)
            if line.startswith("-o ")
            else line
            for line in directives
        ]
        return [*logs, f"-J 0-{tasks - 1}{_bound(tasks, at_once)}"]

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job, whose id has brackets: `490[].server`."""
        yield _qsub([], script, r"^\d+(?:\[\])?\.\S+$", pbs.OWN_VARIABLES, pbs.LOST, pbs.AWAY)

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """`490[7].server`."""
        if not job_ids:
            return None
        return job_ids[0].replace("[]", f"[{task}]")

    @asked_again
    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """`qstat -f -t`, which lists every task by itself."""
        result = run_command(["qstat", "-f", "-t", *arrays, *jobs])
        # 35: one of them has ended; 153: one is not known any more.
        if result.returncode not in (0, 35, 153):
            raise AwayError(f"qstat does not answer: {complaint(result)}")
        found = pbs.parse_qstat(result.stdout)
        return {job_id: pbs.job_status(attributes) for job_id, attributes in found.items()}

    def last_words(self, job_ids: Sequence[str]) -> Answers:
        """From the history, where the server keeps one."""
        found = pbs.parse_qstat(run_command(["qstat", "-x", "-f", *job_ids]).stdout)
        return {
            job_id: pbs.job_status(found[job_id]) if job_id in found else NOT_IN_QUEUE
            for job_id in job_ids
        }

    def array_of(self, job_id: str) -> str:
        """`490[].server` of `490[7].server`."""
        return re.sub(r"\[\d+\]", "[]", job_id)

    def find(self, folder: Path, script: Path) -> list[str]:
        """By the log, which those of points have not in there."""
        jobs = self.scheduler.queued().items()
        return [job_id for job_id, path in jobs if path.parent == folder / "logs"]


class CobaltArrays(Arrays):
    """Cobalt has none: a job a point, whose number travels with `--env`."""

    name = "cobalt"
    task = "$HPC_AMP_TASK"
    job_id = "$COBALT_JOBID"
    bounds = False

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """One job after the other, until the queue takes no more."""
        for task in range(tasks):
            own = ["--env", f"HPC_AMP_TASK={task}"]
            yield _qsub(own, script, r"^\d+(?= |$)", cobalt.OWN_VARIABLES, cobalt.LOST, cobalt.AWAY)

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The job of that number."""
        return job_ids[task] if task < len(job_ids) else None

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """One qstat for all."""
        return self.scheduler.query([*arrays, *jobs])

    def find(self, folder: Path, script: Path) -> list[str]:
        """By the script. In the order of their ids they are the tasks."""
        return [job_id for job_id, path in self.scheduler.queued().items() if path == script]


class LocalArrays(Arrays):
    """This machine: the command that started the sweep runs its points, and is the array's job."""

    name = "local"
    task = "$HPC_AMP_TASK"
    # As in the launch script, which this script becomes.
    job_id = """local-$$-$(awk '{ print $22 }' "/proc/$$/stat")"""
    shell = "bash"
    takes_time = False

    def submit(self, script: Path, tasks: int) -> Iterator[str]:
        """Nobody takes it: see `hpc_amp.sweep.here`."""
        raise SchedulerError("on this machine a sweep runs in the foreground")

    def task_id(self, job_ids: Sequence[str], task: int, tasks: int) -> str | None:
        """The command that will start it."""
        return job_ids[0] if job_ids else None

    def find(self, folder: Path, script: Path) -> list[str]:
        """The command that would have run it is gone."""
        return []

    def query(self, arrays: Sequence[str], jobs: Sequence[str]) -> Answers:
        """Which processes are alive. While the command is, its points wait for their turn."""
        answers = self.scheduler.query([*arrays, *jobs])
        waiting = {job_id: JobStatus("pending") for job_id in arrays if _runs(answers[job_id])}
        return {**answers, **waiting}


def _runs(status: JobStatus) -> bool:
    return status.state == "running"


_ARRAYS: dict[str, type[Arrays]] = {
    arrays.name: arrays for arrays in (SlurmArrays, PbsArrays, CobaltArrays, LocalArrays)
}


def get_arrays(scheduler: str) -> Arrays:
    """The arrays of a scheduler. Raises UsageError for one that has no name here."""
    if scheduler not in _ARRAYS:
        raise UsageError(f"there is no scheduler {scheduler!r}")
    return _ARRAYS[scheduler]()


def _bound(tasks: int, at_once: int | None) -> str:
    return f"%{at_once}" if at_once is not None and at_once < tasks else ""


@asked_again
def _qsub(
    options: Sequence[str],
    script: Path,
    job_id: str,
    variables: Sequence[str],
    lost: str,
    away: str,
) -> str:
    """Hand in a script; its job's id."""
    submission = hand_in(
        ["qsub", *options, str(script)],
        environ=submission_environment(os.environ, *variables),
        folder=script.parent,
        job_id=job_id,
        lost=lost,
        away=away,
    )
    return submission.job_id
