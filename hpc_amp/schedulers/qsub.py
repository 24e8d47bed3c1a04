"""The common part of the schedulers with a command `qsub`: they start one process on the first
node, a run continues in another job, and the same commands hold and release jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.resources import Which
from hpc_amp.schedulers.base import (
    Scheduler,
    UnreachableError,
    complaint,
    launcher_of_one_node,
    retried,
    run_command,
)
from hpc_amp.schedulers.grammar import Grammar

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job


def is_beside(which: Which, command: str, others: Sequence[str]) -> bool:
    """Whether one of the programs `others` is in the same folder as the program `command`."""
    folder = Path(which(command) or "").parent
    found = (which(other) for other in others)
    return any(Path(path).parent == folder for path in found if path)


def log_files_in(
    directives: Sequence[str], grammar: Grammar, *, variable: str
) -> Iterator[tuple[str, Path]]:
    """Yield the files of the options `-o` and `-e`, as they are written and as paths without the
    host that may precede them. Files whose names contain `variable` are left out."""
    for line in directives:
        for option in grammar.parse_line(line).options:
            value = option.value or ""
            if option.name in ("o", "e") and value and variable not in value:
                yield f"{option.spelling} {value}", Path(value.rpartition(":")[2])


class QsubScheduler(Scheduler):
    """A scheduler with `qsub`. A run continues in another job.

    Signals do not reach the ranks reliably. On PBS, the ranks of the first node are killed by their
    launcher, which gets SIGTERM as well, and those of other nodes get no signal. On Cobalt, SIGTERM
    usually reaches an ssh client only. Grid Engine kills at once.
    """

    command = "qsub"
    chains = True
    signals_ranks = False

    def default_launcher(self, job: Job) -> str:
        """`mpirun` for several nodes."""
        return "mpirun" if job.resources.nodes > 1 else launcher_of_one_node(job)

    @retried
    def release(self, job_id: str) -> None:
        """Release a held job with `qrls`."""
        result = run_command(["qrls", job_id])
        if result.returncode != 0:
            raise UnreachableError(f"qrls {job_id}: {complaint(result)}")
