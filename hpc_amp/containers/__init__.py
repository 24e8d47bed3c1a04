"""How a command runs inside an image: apptainer, singularity, or no container at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.containers.apptainer import BINARIES, ExecContainer
from hpc_amp.containers.base import Container
from hpc_amp.containers.none import NoContainer

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site

__all__ = ["Container", "get_container"]


def get_container(job: Job, site: Site) -> Container:
    """The container of `job`: none without an image."""
    runtime = job.container.runtime if job.container.runtime != "auto" else site.runtime
    if job.container.image is None or runtime == "none":
        return NoContainer()
    return ExecContainer(BINARIES[runtime])
