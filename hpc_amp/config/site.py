"""Every key of a site file: what one cluster wants, said once by somebody who knows it.

The string under a field is its documentation: `docs/sites.md` is generated from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpc_amp.config.schema import Words, environment_names, printable
from hpc_amp.config.tree import Table


def host_suffix(value: str) -> None:
    """A check that text can stand behind a host name."""
    if not re.fullmatch(r"[A-Za-z0-9.-]*", value):
        raise ValueError(
            f"{value!r} cannot stand behind a host name: use letters, digits, '.', '-'"
        )


def gpu_type_name(value: str) -> None:
    """A check that text can name a type of GPU in a request."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"{value!r} cannot name a GPU: write it as `sinfo -o %G` shows it: a100")


@dataclass(kw_only=True, slots=True, frozen=True)
class Site:
    """What a cluster wants."""

    name: Annotated[str, printable] = ""
    """The name for `site:` in a job file. It is the file's name without `.yaml`, and may be left
    out."""
    description: Annotated[str, printable] = ""
    """One line for `hpc-amp doctor`: which machine, and where its documentation is."""
    scheduler: Literal["slurm", "local"]
    """`slurm`: `sbatch` and friends. `local`: the machine at hand, without any scheduler."""
    launcher: Literal["auto", "srun", "torchrun", "single"] = "auto"
    """What `launch.method: auto` means here. `auto`: `srun` on Slurm, and locally `torchrun` or,
    for one rank, `single`."""
    runtime: Literal["auto", "apptainer", "singularity", "none"] = "auto"
    """What `container.runtime: auto` means here for a job with an image. `auto`: whichever of the
    two is installed on the nodes."""
    hosts: Words = field(default_factory=list)
    """Patterns for the login nodes' full names, such as `login*.perlmutter.nersc.gov`. Where one
    fits, `site: auto` chooses this site."""
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How GPUs are asked for: `--gpus-per-node=4`, `--gres=gpu:4`, or not at all, where whole nodes
    are given or `directives` say it."""
    gpu_type: Annotated[str, gpu_type_name] | None = None
    """Type of GPU to ask for: `a100` asks with `gpu:a100:4`. Default: any."""
    bind: Words = field(default_factory=list)
    """Host paths that every container of this site sees: file systems, fabric libraries."""
    env: Annotated[dict[str, str], environment_names] = field(default_factory=dict)
    """Environment that the script exports before the launch: fabric settings, proxies. A job's
    `container.env` goes on top."""
    setup: str = ""
    """Shell lines for the first node before the launch, such as `module load apptainer`."""
    directives: Words = field(default_factory=list)
    """Directives for every job, each as the scheduler reads it after its marker:
    `--constraint=gpu`."""
    skip_directives: Words = field(default_factory=list)
    """Generated directives that this scheduler refuses, by option: `--gpus-per-node`."""
    address_suffix: Annotated[str, host_suffix] = ""
    """Text behind the first node's name in `MASTER_ADDR`, such as `-ib0`, where only that name
    leads to the fast network."""
    container_args: Words = field(default_factory=list)
    """More options for every `apptainer exec`, such as `--cleanenv`."""
    defaults: Table = field(default_factory=lambda: Table({}, "no site file"))
    """Keys of a [job file](config.md) that hold here unless the job says otherwise, in the same
    form: `job: {queue: gpu}`. Those below `train` reach only jobs that train."""
