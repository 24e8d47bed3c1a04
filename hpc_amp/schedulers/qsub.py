"""What the schedulers with a `qsub` have in common: they start one process on the first node, a run
goes on in another job, and commands of the same names hold and release jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.schedulers.base import (
    AwayError,
    Scheduler,
    Which,
    asked_again,
    complaint,
    launcher_of_one_node,
    run_command,
)
from hpc_amp.schedulers.grammar import Grammar

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job


def is_beside(which: Which, command: str, others: Sequence[str]) -> bool:
    """Whether the folder of a command has one of the others too."""
    folder = Path(which(command) or "").parent
    found = (which(other) for other in others)
    return any(Path(path).parent == folder for path in found if path)


def log_files_in(
    directives: Sequence[str], grammar: Grammar, *, variable: str
) -> Iterator[tuple[str, Path]]:
    """The files of `-o` and `-e`, which may have a host in front, as they are written and as paths;
    without those that have a `variable` in them."""
    for line in directives:
        for option in grammar.parse_line(line).options:
            value = option.value or ""
            if option.name in ("o", "e") and value and variable not in value:
                yield f"{option.spelling} {value}", Path(value.rpartition(":")[2])


class QsubScheduler(Scheduler):
    """A run goes on in another job. The ranks cannot count on signals: on PBS those of the first
    node are killed by their launcher, which gets SIGTERM as well, and those of other nodes get
    none; on Cobalt it reaches an ssh client only, in the usual set-up; Grid Engine kills at once.
    """

    command = "qsub"
    chains = True
    signals_ranks = False

    def default_launcher(self, job: Job) -> str:
        """MPI's launcher where there are several nodes."""
        return "mpirun" if job.resources.nodes > 1 else launcher_of_one_node(job)

    @asked_again
    def release(self, job_id: str) -> None:
        """`qrls`."""
        result = run_command(["qrls", job_id])
        if result.returncode != 0:
            raise AwayError(f"qrls {job_id}: {complaint(result)}")
