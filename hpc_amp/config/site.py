"""Every key of a site file: the settings that one cluster needs, for all jobs and users.

The string under a field is its documentation: `docs/sites.md` is generated from it.
"""

import re
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from hpc_amp.config.paths import Expansion
from hpc_amp.config.tree import MappingNode
from hpc_amp.config.values import (
    Binds,
    Path,
    Registered,
    Section,
    Word,
    Words,
    environment_names,
    printable,
    section,
)


def host_pattern(value: str) -> None:
    """A check that text is a host name with one `{host}` in it."""
    if not re.fullmatch(r"[A-Za-z0-9.-]*\{host\}[A-Za-z0-9.-]*", value):
        raise ValueError(
            f"{value!r} is not {{host}} with letters, digits, '.' and '-' before or behind it, "
            "such as ic-{host}"
        )


def gpu_type_name(value: str) -> None:
    """A check that text can name a GPU type in a request to the scheduler."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"{value!r} cannot name a GPU: write it as `sinfo -o %G` shows it: a100")


def chunk_resources(value: list[str]) -> None:
    """A check that every item can be a resource in PBS's `select`, where `:` and `+` separate."""
    for item in value:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*=[^\s:+]+", item):
            raise ValueError(f"{item!r} is not a resource of a chunk: write name=value")


SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def library_folders(value: list[str]) -> None:
    """A check that every item is a folder for `LD_LIBRARY_PATH` in the container, or the name of a
    variable with such folders."""
    for item in value:
        if item.startswith("$"):
            if not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", item):
                raise ValueError(f"{item!r} is not the name of a variable: write $NAME")
        elif not item.startswith("/") or ":" in item:
            raise ValueError(f"{item!r} is not one absolute path: list every folder by itself")
        elif item.rstrip("/") in SYSTEM_LIBRARIES:
            raise ValueError(f"{item!r} is the image's own inside, and it is searched anyway")


@section(kw_only=True, slots=True, frozen=True)
class HostMpi(Section):
    """The MPI of the host, for jobs with `launch.mpi: bind`."""

    prefix: Path | None = None
    """Folder that Open MPI is installed in. It is mounted, and `OPAL_PREFIX` in the container is
    set to it. Default: not set; MPICH and Cray MPICH do not need it."""
    libraries: Annotated[Words, library_folders] = field(default_factory=list)
    """Folders that are put before the image's in `LD_LIBRARY_PATH`, by their paths in the
    container. `$NAME` stands for the folders in that variable, which `setup` exports. Do not use
    the host's `/usr/lib64` under any path: the image's programs would load the host's C library.
    Bind single files instead."""
    bind: Binds = field(default_factory=list)
    """Further host paths that the MPI needs, as in `bind`."""


@section(kw_only=True, slots=True, frozen=True)
class Site(Section):
    """The settings of a cluster."""

    RENAMED: ClassVar[dict[str, tuple[str, str]]] = {"address_suffix": ("address", '"{host}OLD"')}

    name: Annotated[str, printable] = ""
    """The name for `site:` in a job file. It is the file's name without `.yaml`, and may be left
    out."""
    description: Annotated[str, printable] = ""
    """One line for `hpc-amp doctor`: the machine and its documentation."""
    scheduler: Annotated[str, Registered("hpc_amp.schedulers:SCHEDULERS")]
    """`slurm`: `sbatch` and friends. `pbs`: PBS Professional and OpenPBS. `cobalt`: Argonne's.
    `gridengine`: Grid Engine. `local`: the machine at hand, without any scheduler."""
    launcher: Annotated[str, Registered("hpc_amp.launchers:LAUNCHERS", ("auto",))] = "auto"
    """The launcher for `launch.method: auto`. `auto`: `srun` on Slurm; elsewhere `single` for one
    rank, on one node `processes` (`torchrun` if the job has `launch.args`), `mpirun` on several."""
    launcher_args: Words = field(default_factory=list)
    """More options for `mpirun`, `mpiexec` and `srun`, before those of the job."""
    srun_mpi: Word = "pmix"
    """Value of `srun --mpi` for jobs with `launch.mpi`. `srun --mpi=list` prints the values."""
    host_mpi: HostMpi = field(default_factory=HostMpi)
    """The MPI of the host, for jobs with `launch.mpi: bind`."""
    fabric: Word | None = None
    """[Profile](#fabric-profiles) of the network between nodes: `ib`, `slingshot`, ... Default:
    none."""
    runtime: Annotated[str, Registered("hpc_amp.containers:CONTAINERS")] = "auto"
    """The runtime for `container.runtime: auto` if the job has an image. `auto`: Apptainer or
    Singularity, whichever is installed on the nodes."""
    hosts: Words = field(default_factory=list)
    """Patterns for the full names of the login nodes, such as `login*.perlmutter.nersc.gov`.
    `site: auto` chooses this site if one matches."""
    gpu_request: Word = "auto"
    """How GPUs are requested. Slurm: `--gpus-per-node=4` or `--gres=gpu:4`. PBS: `ngpus=4` in each
    chunk. Grid Engine: `gpu` requests the GPUs of a node, `gpu-per-slot` divides them by the node's
    slots. `none`: no request, for whole nodes or if `directives` request GPUs. `auto`:
    `gpus-per-node` on Slurm, `ngpus` on PBS, `gpu` on Grid Engine, `none` on Cobalt."""
    gpu_order: Literal["as-is", "reversed"] = "as-is"
    """`reversed`: the first rank of a node uses the node's last GPU. For nodes whose last GPU is
    the one nearest to the first cores."""
    chunk: Annotated[Words, chunk_resources] = field(default_factory=list)
    """PBS: more resources of each chunk, such as `system=polaris`."""
    gpu_type: Annotated[str, gpu_type_name] | None = None
    """Slurm: type of GPU to request. `a100` requests `gpu:a100:4`. Default: any."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of this site's scheduler, by name. Grid Engine: `parallel_environment` of jobs on
    several nodes (default: `mpi`), `one_node_environment` of jobs on one node (default: the same),
    `slots_per_node` that the environment's rule gives (default: the slots that the job's ranks
    need), and the names of the resources for GPUs, `gpu_resource` (default: `gpu`), for memory,
    `memory_resource`, and for whole nodes, `exclusive_resource` (`relop EXCL` in `qconf -sc`)."""
    bind: Binds = field(default_factory=list)
    """Host paths that every container of this site sees: file systems, fabric libraries."""
    env: Annotated[dict[str, str], environment_names] = field(default_factory=dict)
    """Environment variables that the script exports before the launch, such as proxies. They
    override those of the fabric profile, and a job's `container.env` overrides both. Variables that
    hpc-amp sets itself are refused, as there."""
    setup: str = ""
    """Shell lines for the first node before the launch, such as `module load apptainer`."""
    directives: Words = field(default_factory=list)
    """Directives for every job, each as the scheduler reads it after its marker:
    `--constraint=gpu`."""
    skip_directives: Words = field(default_factory=list)
    """Generated directives that this scheduler refuses, by option: `--gpus-per-node`."""
    address: Annotated[str, host_pattern] | None = None
    """Form of the first node's name in `MASTER_ADDR`, for sites where nodes have another name in
    the fast network: `{host}-ib0`, `ic-{host}`, `{host}.hsn.example.org`. `{host}` is the node's
    short name. Default: the name that the scheduler uses."""
    container_args: Words = field(default_factory=list)
    """More options of the runtime for every container, such as Apptainer's `--fakeroot`."""
    defaults: MappingNode = field(default_factory=lambda: MappingNode({}, "no site file"))
    """Defaults for keys of a [job file](config.md), in the same form: `job: {queue: gpu}`. Defaults
    below `train` apply only to jobs that train."""
    expanded: tuple[Expansion, ...] = field(default=(), metadata={"derived": True})
    """The paths of this site that were written with variables."""
