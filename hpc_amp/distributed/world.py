"""Determines rank, world size and local rank, for the whole job side.

Launchers use different variables, and after a wrong guess N processes would each train alone
without a message. So the order of sources is fixed, a source counts only if it is complete, and the
result has to agree with what the host script started (`HPC_AMP_WORLD_SIZE`, and `HPC_AMP_NNODES`
times `HPC_AMP_PPN`).
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping

from hpc_amp.errors import JobError


class WorldError(JobError):
    """The launcher's variables are missing, contradictory, or not what the script started."""


_ALONE = "single process"


class World(
    namedtuple(
        "World",
        ("rank", "size", "local_rank", "local_size", "nodes", "source"),
        defaults=(0, 1, 0, 1, 1, _ALONE),
    )
):
    """The place of a process among the ranks.

    It is `rank` of `size` in the job, and `local_rank` of `local_size` on its node. `nodes`: the
    number of nodes. `source`: where this comes from, for messages.
    """

    __slots__ = ()
    rank: int
    size: int
    local_rank: int
    local_size: int
    nodes: int
    source: str

    @property
    def node_rank(self) -> int:
        """The index of this process's node. Ranks are placed in blocks."""
        return self.rank // self.local_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and reports."""
        return self.rank == 0


class _Source:
    """The variables of a launcher. If there are several names, the first one that is set counts.
    Without a name for the local rank, it is computed from the rank: hpc-amp's launchers place ranks
    in blocks of `HPC_AMP_PPN`."""

    def __init__(
        self,
        name: str,
        rank: str,
        size: tuple[str, ...],
        local_rank: tuple[str, ...] = (),
        local_size: tuple[str, ...] = (),
    ) -> None:
        self.name, self.rank, self.size = name, rank, size
        self.local_rank, self.local_size = local_rank, local_size


# `HPC_AMP_*` replaces variables that a launcher lacks: PALS without Cray's PMI has none for the
# world size, and PMIx has only one for the rank. `srun --mpi=pmi2` and `--mpi=pmix` set PMI's or
# PMIx's rank besides Slurm's own variables, which include the node, so those two come after Slurm.
_SOURCES = (
    _Source("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Source(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Source(
        "PALS",
        "PALS_RANKID",
        ("PMI_SIZE", "HPC_AMP_WORLD_SIZE"),
        ("PALS_LOCAL_RANKID",),
        ("PALS_LOCAL_SIZE",),
    ),
    _Source(
        "PMI",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("PMI_LOCAL_RANK", "MPI_LOCALRANKID"),
        ("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    ),
    _Source("Slurm step", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), ("SLURM_LOCALID",)),
    _Source("PMI", "PMI_RANK", ("PMI_SIZE",)),
    _Source("PMIx", "PMIX_RANK", ("HPC_AMP_WORLD_SIZE",)),
)


def resolve(environ: Mapping[str, str]) -> World:
    """This process's place among the ranks, from its environment.

    Order: torchrun (or anything that sets RANK, WORLD_SIZE and LOCAL_RANK), Open MPI, PALS, PMI, a
    Slurm step, PMI or PMIx without a local rank, a single process. A batch script has
    SLURM_PROCID=0 as well, so Slurm only counts if `SLURM_STEP_NUM_TASKS` shows that this is a
    step. Raises WorldError if the result is not what the host script started.
    """
    world = World()
    for source in _SOURCES:
        found = _read(source, environ)
        if found is not None:
            world = found
            break
    _check(world, environ)
    return world


def _read(source: _Source, environ: Mapping[str, str]) -> World | None:
    """The world that a launcher's variables describe, or None if they are incomplete."""
    size_name = _first(source.size, environ)
    local_names = source.local_rank or ("HPC_AMP_PPN",)
    local_name = _first(local_names, environ)
    if not environ.get(source.rank) or size_name is None or local_name is None:
        return None
    rank = _number(environ, source.rank)
    size = _number(environ, size_name)
    local_size = _local_size(source, environ, size)
    if source.local_rank:
        local_rank = _number(environ, local_name)
    else:
        local_rank = rank % max(1, _number(environ, local_name))
    nodes = -(-size // max(1, local_size))
    return World(rank, size, local_rank, local_size, nodes, source.name)


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if environ.get(name)), None)


def _local_size(source: _Source, environ: Mapping[str, str], size: int) -> int:
    """The number of ranks on this node: from the launcher, from Slurm's list of nodes, or from
    HPC_AMP_PPN; without these, all ranks are on one node."""
    name = _first(source.local_size, environ)
    if name is not None:
        return _number(environ, name)
    if source.rank == "SLURM_PROCID":
        counts = _tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = environ.get("SLURM_NODEID", "")
        if node.isdecimal() and int(node) < len(counts):
            return counts[int(node)]
    return _number(environ, "HPC_AMP_PPN") if environ.get("HPC_AMP_PPN") else size


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's short form of a list: "4(x2),1" means 4, 4, 1. Empty if it has another form."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise WorldError(f"{name}={environ[name]!r} is not a number") from None


def _check(world: World, environ: Mapping[str, str]) -> None:
    """Raise WorldError if a world contradicts itself or what the host script started."""
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
    _check_layout(world, environ)


def _check_layout(world: World, environ: Mapping[str, str]) -> None:
    """Check that HPC_AMP_PPN ranks are on each of HPC_AMP_NNODES nodes, in blocks.

    In another layout, the index of the node would be wrong. Open MPI does not report it, so the
    local rank has to prove it. On a single node, ranks may have any order; Open MPI 5 changes it if
    there are more ranks than cores.
    """
    if not environ.get("HPC_AMP_PPN") or world.source == _ALONE:
        return
    per_node = _number(environ, "HPC_AMP_PPN")
    if world.local_size != per_node:
        raise WorldError(
            f"{world.local_size} ranks are on this node, but the job puts {per_node} on each "
            f"(from {world.source}): remove what changes the layout from launch.args"
        )
    if world.nodes > 1 and world.rank % per_node != world.local_rank:
        raise WorldError(
            f"rank {world.rank} has local rank {world.local_rank} (from {world.source}), but the "
            f"job lays its ranks out in blocks of {per_node}: remove what changes the order, such "
            "as `-map-by node` or `--distribution=cyclic`, from launch.args"
        )
    named = "HPC_AMP_NNODES"
    if environ.get(named) and world.nodes != _number(environ, named):
        raise WorldError(
            f"{world.size} ranks, {per_node} on each node, need {world.nodes} nodes, but the job "
            f"has {environ[named]} (from {world.source})"
        )


def standard_variables(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which torch.distributed programs find each other.

    MASTER_ADDR and MASTER_PORT come from the host script, which knows the nodes. If it sets
    HPC_AMP_MASTER_ADDR and HPC_AMP_MASTER_PORT, those count, because an image may set the plain
    names. Raises WorldError if they are missing and there is more than one rank.
    """
    address = environ.get("HPC_AMP_MASTER_ADDR") or environ.get("MASTER_ADDR")
    port = environ.get("HPC_AMP_MASTER_PORT") or environ.get("MASTER_PORT")
    missing = []
    if not address:
        missing.append("MASTER_ADDR")
    if not port:
        missing.append("MASTER_PORT")
    if missing and world.size > 1:
        raise WorldError(
            f"{' and '.join(missing)} not set, but {world.size} ranks have to find each other"
        )
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.node_rank),
        "MASTER_ADDR": address or "127.0.0.1",
        "MASTER_PORT": port or "0",
    }
