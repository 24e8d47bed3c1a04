"""The slots and the parallel environment of a job on Grid Engine, which stand for cores and
nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site


def slots_of_node(job: Job, site: Site) -> int:
    """The number of slots that a job gets on each node: the site's `slots_per_node`, else one for
    each core of its ranks."""
    given = site.options.get("slots_per_node")
    return int(given) if given is not None else job.cpus_per_node


def several_nodes(site: Site) -> str:
    """The name of the parallel environment of jobs on several nodes."""
    return site.options.get("parallel_environment", "mpi")


def environment(job: Job, site: Site) -> str | None:
    """The name of the job's parallel environment; None for a job with a single slot."""
    if job.resources.nodes > 1:
        return several_nodes(site)
    if slots_of_node(job, site) == 1:
        return None
    return site.options.get("one_node_environment", several_nodes(site))
