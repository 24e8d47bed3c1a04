"""The batches of the points of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_amp.campaigns.words import count
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import Job
from hpc_amp.errors import UsageError
from hpc_amp.study.folder import Kind


@dataclass(frozen=True, slots=True)
class Batches:
    """The keys that give a point its batch, their values for each kind and number of nodes, and
    for each kind a text about the batch that is the same on all numbers of nodes."""

    keys: tuple[str, ...]
    values: Mapping[tuple[Kind, int], tuple[str, ...]]
    said: Mapping[Kind, str]


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """The value of a job that is the batch of the user's own program: `values.NAME`."""

    name: str
    of_rank: bool
    """Whether it is the batch of a rank, and not that of all ranks."""


def own_batches(
    loaded: LoadedJob, kinds: Sequence[Kind], nodes: Sequence[int], batch: OwnBatch | None
) -> Batches:
    """The batches of the user's own program.

    If no value of the job is the batch, all points have the same command line. The program then
    decides what is scaled, and can show only one kind of scaling. Raises UsageError if a value is
    not a batch, or does not fit.
    """
    if batch is None:
        if len(kinds) > 1:
            raise UsageError(
                "your own program has the same arguments on all numbers of nodes",
                hint="--rank-batch NAME or --global-batch NAME names the argument that is the "
                "batch of a rank or of all ranks, or give --kind weak or --kind strong",
            )
        said: dict[Kind, str] = {
            "weak": "the program's arguments stay, and each rank has the same batch",
            "strong": "the program's arguments stay, and the program divides a fixed global batch",
        }
        return Batches((), {(kinds[0], number): () for number in nodes}, said)
    value = _value(loaded.job, batch)
    ranks = loaded.job.world_size
    of_all = value * ranks if batch.of_rank else value
    if not batch.of_rank and of_all % ranks:
        raise UsageError(f"the batch {value} of {batch.name} is not divisible by {ranks} ranks")
    values: dict[tuple[Kind, int], tuple[str, ...]] = {}
    for kind in kinds:
        for number in nodes:
            now = number * loaded.job.ranks_per_node
            whole = of_all if kind == "strong" else of_all // ranks * now
            if whole % now:
                raise UsageError(
                    f"strong scaling divides the batch of {of_all:,} samples among the ranks, and "
                    f"{count(number, 'node')} have {now} ranks",
                    hint=f"give {batch.name} a value that can be divided, or --kind weak",
                )
            values[kind, number] = (str(whole // now if batch.of_rank else whole),)
    name = f"{batch.name} {'of a rank' if batch.of_rank else 'of all ranks'}"
    return Batches(
        (f"values.{batch.name}",),
        values,
        {
            "strong": f"{count(of_all, 'sample')} a step ({name})",
            "weak": f"{count(of_all // ranks, 'sample')} a step and rank ({name})",
        },
    )


def _value(job: Job, batch: OwnBatch) -> int:
    text = job.values.get(batch.name)
    if text is None:
        option = batch.name.replace("_", "-")
        raise UsageError(
            f"the job has no value {batch.name}",
            hint=f"give the argument --{option}=N after --, or in a job file write "
            f"{{{batch.name}}} in run and values: {{{batch.name}: N}}",
        )
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"values.{batch.name} is {text!r}, which is no batch")
    return int(text)
