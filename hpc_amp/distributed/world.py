"""The one place that decides rank, world size and local rank.

Launchers announce them in different variables, and a wrong guess trains N worlds of one in
silence. So there is one order, each source is all or nothing, and the host script's expectation
(`HPC_AMP_WORLD_SIZE`, `HPC_AMP_NNODES`) must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class WorldError(RuntimeError):
    """The launcher's variables are missing, contradictory, or not what the script started."""


@dataclass(frozen=True, slots=True)
class World:
    """A process's place: `rank` of `size` in the job, `local_rank` of `local_size` on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    nodes: int = 1
    source: str = "single process"

    @property
    def node_rank(self) -> int:
        """Index of this process's node, with ranks laid out in blocks."""
        return self.rank // self.local_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes and reports."""
        return self.rank == 0


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()


# `HPC_AMP_*` stands where a launcher does not say: PALS has no variable for the world size.
_SOURCES = (
    _Source("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Source(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Source("PALS", "PALS_RANKID", ("PMI_SIZE", "HPC_AMP_WORLD_SIZE"), ("PALS_LOCAL_RANKID",)),
    _Source("PMI", "PMI_RANK", ("PMI_SIZE",), ("PMI_LOCAL_RANK", "MPI_LOCALRANKID")),
    _Source("Slurm step", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), ("SLURM_LOCALID",)),
)


def resolve(environ: Mapping[str, str]) -> World:
    """This process's place among the ranks, from its environment.

    Order: torchrun (or anything that sets RANK, WORLD_SIZE and LOCAL_RANK), Open MPI, PALS, PMI,
    a Slurm step, a single process. A batch script has SLURM_PROCID=0 too, so Slurm counts only
    where `SLURM_STEP_NUM_TASKS` says that this is a step of more than one task, or of one task when
    one is expected. Raises WorldError where the result is not what the host script started.
    """
    world = next(filter(None, (_read(source, environ) for source in _SOURCES)), World())
    _check(world, environ)
    return world


def _read(source: _Source, environ: Mapping[str, str]) -> World | None:
    size_name = next((name for name in source.size if environ.get(name)), None)
    local_name = next((name for name in source.local_rank if environ.get(name)), None)
    if not environ.get(source.rank) or size_name is None or local_name is None:
        return None
    rank = _number(environ, source.rank)
    size = _number(environ, size_name)
    local_rank = _number(environ, local_name)
    local_sizes = [*source.local_size, "HPC_AMP_PPN"]
    local_size_name = next((name for name in local_sizes if environ.get(name)), None)
    local_size = _number(environ, local_size_name) if local_size_name else size
    nodes = -(-size // max(1, local_size))
    return World(rank, size, local_rank, local_size, nodes, source.name)


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise WorldError(f"{name}={environ[name]!r} is not a number") from None


def _check(world: World, environ: Mapping[str, str]) -> None:
    named = "HPC_AMP_WORLD_SIZE"
    expected = _number(environ, named) if environ.get(named) else world.size
    if world.size != expected:
        raise WorldError(
            f"the job was started for {expected} ranks, but this process sees {world.size} "
            f"(from {world.source}): it would train alone. Check that the launcher in the script "
            "starts the ranks and that its variables reach the container"
        )
    if not 0 <= world.rank < world.size:
        raise WorldError(f"rank {world.rank} is outside a world of {world.size} ({world.source})")
    if not 0 <= world.local_rank < world.local_size:
        raise WorldError(
            f"local rank {world.local_rank} is outside the {world.local_size} ranks of this node "
            f"({world.source})"
        )


def standard_variables(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which every torch.distributed script finds its peers.

    MASTER_ADDR and MASTER_PORT come from the host script, which knows the nodes. Raises WorldError
    where they are missing and the world has more than one rank.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing and world.size > 1:
        raise WorldError(f"{' and '.join(missing)} not set, and {world.size} ranks have to meet")
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.node_rank),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or "127.0.0.1",
        "MASTER_PORT": environ.get("MASTER_PORT") or "0",
    }
