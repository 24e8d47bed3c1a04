"""Container runtimes: classes that run a command in an image, found by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.containers.base import Container
from hpc_amp.registry import Registry

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site

__all__ = ["CONTAINERS", "Container", "container_of", "get_container", "image_runtime"]

# `auto` is a runtime like the others: the one that most clusters have.
CONTAINERS: Registry[Container] = Registry(
    "hpc_amp.containers",
    "hpc_amp.containers.base:Container",
    {
        "auto": "hpc_amp.containers.apptainer:Either",
        "apptainer": "hpc_amp.containers.apptainer:Apptainer",
        "singularity": "hpc_amp.containers.apptainer:Singularity",
        "charliecloud": "hpc_amp.containers.charliecloud:Charliecloud",
        "podman": "hpc_amp.containers.podman:Podman",
        "pyxis": "hpc_amp.containers.pyxis:Pyxis",
        "none": "hpc_amp.containers.none:NoContainer",
    },
    attributes=("name", "title"),
)


def container_of(job: Job, site: Site | None) -> str:
    """The name of the runtime that job and site choose, whether or not the job has an image."""
    if job.container.runtime == "auto" and site is not None:
        return site.runtime
    return job.container.runtime


def get_container(job: Job, site: Site | None) -> Container:
    """The container runtime of a job. It is `none` without an image."""
    name = "none" if job.container.image is None else container_of(job, site)
    return CONTAINERS.get(name)()


def image_runtime(site: Site) -> Container:
    """The runtime for images on a site. If the site's runtime is `none`, it is `auto`."""
    container = CONTAINERS.get(site.runtime)()
    return container if container.uses_image else CONTAINERS.get("auto")()
