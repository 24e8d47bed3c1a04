"""The limits of Slurm's partitions, and the architectures of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import run_command
from hpc_amp.schedulers.slurm import reports


def node_architectures(job: Job) -> set[str]:
    """The architectures of the nodes in the job's partition, in the form of `uname -m`. Empty if
    Slurm does not answer."""
    try:
        answer = run_command(["scontrol", "--oneliner", "show", "nodes"])
    except SchedulerError:
        return set()
    names = set()
    queue = job.resources.queue
    for facts in reports.records(answer.stdout):
        if queue and "Partitions" in facts and queue not in facts["Partitions"].split(","):
            continue
        if "Arch" in facts:
            names.add(facts["Arch"])
    return names


def check_site(job: Job, site: Site) -> Iterator[Finding]:
    """Yield findings for keys of a site that the cluster contradicts: more GPUs than the nodes of
    the partition have, a type of GPU or of MPI that does not exist. `job` has the site's
    defaults."""
    yield from _check_gpus(job, site)
    try:
        answer = run_command(["srun", "--mpi=list"])
    except SchedulerError:
        return
    types = reports.mpi_types(answer.stdout + answer.stderr)
    if types and site.srun_mpi not in types:
        what = f"srun has no MPI type {site.srun_mpi} (srun_mpi)"
        why = "jobs with launch.mpi would not start"
        fix = f"the types are {', '.join(types)}; without launch.mpi it is not used"
        yield Finding("sched", "warning", what, why, fix)


def _check_gpus(job: Job, site: Site) -> Iterator[Finding]:
    wanted, queue = job.resources.gpus_per_node, job.resources.queue
    if not wanted or site.gpu_request == "none":
        return
    try:
        answer = run_command(["scontrol", "--oneliner", "show", "nodes"])
    except SchedulerError:
        return
    nodes = [
        reports.gpus(node.get("Gres", ""))
        for node in reports.records(answer.stdout)
        if queue is None or queue in node.get("Partitions", "").split(",")
    ]
    if not nodes:
        return
    kind, where = site.gpu_type, f"partition {queue}" if queue else "cluster"
    most = max(gpus.get(kind, 0) if kind else sum(gpus.values()) for gpus in nodes)
    if most < wanted:
        named = f"GPUs of type {kind}" if kind else "GPUs"
        what = f"job.gpus_per_node is {wanted}, and the nodes of the {where} have {most} {named}"
        types = sorted({name for gpus in nodes for name in gpus if name})
        fix = f"the types there are {', '.join(types)}" if types else "correct the site's defaults"
        yield Finding("sched", "error", what, "Slurm would refuse the job", fix)


def check_limits(job: Job) -> Iterator[Finding]:
    """Yield findings for a job that its partition does not allow, according to sinfo. None if sinfo
    does not answer."""
    resources = job.resources
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%P|%a|%l|%D"])
    except SchedulerError:
        return
    rows = reports.rows(answer.stdout, 4)
    queues = {row[0].rstrip("*"): row for row in rows}
    wanted = resources.queue or next((r[0][:-1] for r in rows if r[0].endswith("*")), None)
    why = "Slurm would refuse the job, or never start it"
    if wanted is None or not queues:
        return
    chosen = [queues[part] for part in wanted.split(",") if part in queues]
    if not chosen:
        what = f"there is no partition {wanted}"
        fix = f"the partitions are {', '.join(sorted(queues))}"
        yield Finding("sched", "error", what, why, fix)
        return
    if all(row[1] != "up" for row in chosen):
        fix = "choose another with job.queue"
        yield Finding("sched", "warning", f"the partition {wanted} is {chosen[0][1]}", why, fix)
    limits = [reports.seconds(row[2]) for row in chosen]
    walltime = parse_duration(resources.walltime)
    if all(limit is not None and limit < walltime for limit in limits):
        what = f"job.walltime {resources.walltime} is more than {wanted} allows ({chosen[0][2]})"
        fix = "make it shorter: a run continues in its next attempt by itself"
        yield Finding("sched", "error", what, why, fix)
    total = sum(int(row[3]) for row in rows if row[0].rstrip("*") in wanted.split(","))
    if resources.nodes > total:
        what = f"job.nodes is {resources.nodes}, and {wanted} has {total}"
        yield Finding("sched", "error", what, why, "request fewer, or another partition")
