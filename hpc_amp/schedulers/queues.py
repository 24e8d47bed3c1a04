"""The limits of a scheduler's queues, and whether they allow a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc_amp.config.units import format_duration
from hpc_amp.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job requests."""

    nodes: int | None
    """None if a directive sets them, and not `job.nodes`."""
    gpus: int
    """On each node; 0 if the scheduler is not asked for them, or a directive does it."""
    walltime: int | None
    """In seconds. None if a directive sets it, and not `job.walltime`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The limits of a queue (Slurm: a partition) for one job. None means that there is no limit, or
    that the scheduler did not report it."""

    name: str
    closed: str = ""
    """The state in which it starts no job, in the scheduler's word. Empty if it starts jobs."""
    longest: int | None = None
    """The longest walltime, in seconds."""
    fewest_nodes: int = 1
    most_nodes: int | None = None
    gpus: tuple[tuple[int, int], ...] | None = None
    """Groups of its nodes: the number of GPUs of each node, and the number of nodes."""
    other_gpus: str = ""
    """The types of the GPUs of its nodes, if none has the type that the site file names."""
    nodes: int | None = None
    """The number of its nodes."""
    indirect: bool = False
    """Whether it is no alternative to another queue: it passes jobs on, or only gets such jobs."""

    def problems(self, request: Request) -> Iterator[tuple[str, str]]:
        """Yield what it does not allow of a request: the problem and the remedy."""
        walltime, gpus = request.walltime, request.gpus
        if walltime is not None and self.longest is not None and walltime > self.longest:
            asked, limit = format_duration(walltime), format_duration(self.longest)
            yield (
                f"job.walltime {asked} is more than {self.name} allows ({limit})",
                "make it shorter: a run continues in its next attempt by itself",
            )
        if request.nodes is None:
            return
        if self.nodes is not None and request.nodes > self.nodes:
            yield f"job.nodes is {request.nodes}, and {self.name} has {self.nodes}", "request fewer"
        elif self.most_nodes is not None and request.nodes > self.most_nodes:
            yield (
                f"job.nodes is {request.nodes}, and {self.name} allows at most {self.most_nodes} "
                "for a job",
                "request fewer",
            )
        elif request.nodes < self.fewest_nodes:
            yield (
                f"job.nodes is {request.nodes}, and {self.name} needs at least "
                f"{self.fewest_nodes} for a job",
                "request more",
            )
        elif gpus and self.gpus is not None:
            enough = sum(number for each, number in self.gpus if each >= gpus)
            most = max((each for each, _ in self.gpus), default=0)
            if enough == 0 and self.other_gpus:
                yield (
                    f"the GPUs of {self.name} do not have the type that the site file names "
                    f"(gpu_type): they are {self.other_gpus}",
                    "set gpu_type in the site file",
                )
            elif enough == 0:
                yield (
                    f"job.gpus_per_node is {gpus}, and the nodes of {self.name} have "
                    f"{most or 'none'}",
                    "request fewer",
                )
            elif enough < request.nodes:
                yield (
                    f"job.nodes is {request.nodes}, and {self.name} has {enough} with {gpus} GPUs",
                    "request fewer",
                )


def limit_seconds(text: str) -> int | None:
    """Convert a limit of PBS or Grid Engine, `12:00:00` or a number of seconds, to seconds. None
    for any other text, such as INFINITY."""
    if not re.fullmatch(r"\d+(:\d+){0,2}", text):
        return None
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def check_queues(
    request: Request, queues: Sequence[Queue], wanted: Sequence[str], noun: str
) -> Iterator[Finding]:
    """Yield the findings of the check `sched` for a job in one of the `wanted` queues, whichever
    takes it. `noun` is the word for a queue."""
    why = "the scheduler would refuse the job, or never start it"
    chosen = [queue for queue in queues if queue.name in wanted]
    if not chosen:
        names = ", ".join(sorted(queue.name for queue in queues))
        what = f"there is no {noun} {' or '.join(wanted)}"
        yield Finding("sched", "error", what, why, f"the {noun}s are {names}")
        return
    found = [list(queue.problems(request)) for queue in chosen]
    if all(found):
        others = [
            q.name for q in queues if not q.closed and not q.indirect and not [*q.problems(request)]
        ]
        instead = f", or set job.queue: {' or '.join(others[:3])}" if others else ""
        for what, fix in min(found, key=len):
            yield Finding("sched", "error", what, why, f"{fix}{instead}")
    if all(queue.closed for queue in chosen):
        what = f"the {noun} {chosen[0].name} is {chosen[0].closed}"
        why = "it starts no job until it is open again"
        yield Finding("sched", "warning", what, why, "choose another with job.queue")
