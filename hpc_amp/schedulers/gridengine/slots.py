"""Nodes and cores as Grid Engine has them: slots of a parallel environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site


def slots_of_node(job: Job, site: Site) -> int:
    """The slots that a job gets on each of its nodes: what the rule of the site's environment
    gives, else one for each core of its ranks."""
    given = site.options.get("slots_per_node")
    return int(given) if given is not None else job.cpus_per_node


def environment(job: Job, site: Site) -> str | None:
    """The parallel environment; None for a job that has a single slot."""
    several = site.options.get("parallel_environment", "mpi")
    if job.resources.nodes > 1:
        return several
    if slots_of_node(job, site) == 1:
        return None
    return site.options.get("one_node_environment", several)
