"""The limits of Slurm's partitions, and the architectures of its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import Client, run_command
from hpc_amp.schedulers.grammar import Options
from hpc_amp.schedulers.queues import Queue, Request, check_queues
from hpc_amp.schedulers.slurm import reports
from hpc_amp.schedulers.slurm.grammar import GRAMMAR

# Options with which other limits than those of the default partition may hold: a QOS can lift the
# limits of a partition, and sites choose a partition by a QOS or a constraint in a plugin.
_OTHER_LIMITS = ("qos", "reservation")
_CHOOSE_PARTITION = ("constraint", "clusters")
_GPUS = {"--gpus-per-node", "--gres", "--gpus", "--gpus-per-task", "--gpus-per-socket"}


def node_architectures(job: Job, client: Client) -> set[str]:
    """The architectures of the nodes in the job's partition, in the form of `uname -m`. Empty if
    Slurm does not answer."""
    try:
        answer = client.ask("scontrol", "--oneliner", "show", "nodes")
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


def check_site(site: Site) -> Iterator[Finding]:
    """Yield a finding if the site names a type of MPI that srun does not have. None if srun does
    not answer."""
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


def check_limits(job: Job, site: Site, client: Client) -> Iterator[Finding]:
    """Yield findings for a job that its partition does not allow, according to sinfo. None if sinfo
    does not answer."""
    options = _directives(job, site)
    if any(options.all(name) for name in _OTHER_LIMITS):
        return
    skipped = {*site.skip_directives, *job.resources.skip_directives}
    named = options.last("partition")
    if named is None and "--partition" not in skipped:
        named = job.resources.queue
    if named is None and any(options.all(name) for name in _CHOOSE_PARTITION):
        return
    try:
        answer = client.output(
            "sinfo", "--all", "--noheader", "--format=%P|%a|%l|%s|%D|%G", "--sort=P"
        )
    except SchedulerError:
        return
    if answer.count("CLUSTER:") > 1:  # SLURM_CLUSTERS: the first one that is free takes the job
        return
    rows = reports.rows(answer, 6)
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), None)
    wanted = named or default
    if wanted is None or not rows:
        return
    own = skipped | {f"--{option.name}" for option in options.options}
    asks_gpus = site.gpu_request != "none" and not own & _GPUS
    request = Request(
        nodes=None if "--nodes" in own else job.resources.nodes,
        gpus=job.resources.gpus_per_node if asks_gpus else 0,
        walltime=None if "--time" in own else parse_duration(job.resources.walltime),
    )
    queues = _queues(rows, site.gpu_type)
    names = wanted.split(",")
    if not [*check_queues(request, queues, names, "partition")]:
        return
    queues = [_with_hidden_nodes(q, client) if q.name in names else q for q in queues]
    found = list(check_queues(request, queues, names, "partition"))
    if named is None and _plugin_may_choose(client):
        found = [replace(one, severity="warning") for one in found]
    yield from found


def _with_hidden_nodes(queue: Queue, client: Client) -> Queue:
    """The partition with all its nodes: sinfo leaves out those of a cloud that are switched off,
    and their GPUs are not known. The partition as it is if scontrol shows no more nodes."""
    try:
        shown = client.output("scontrol", "--oneliner", "--all", "show", "partition", queue.name)
    except SchedulerError:
        return queue
    facts = next(iter(reports.records(shown)), {})
    total = facts.get("TotalNodes", "")
    if not total.isdecimal() or int(total) <= (queue.nodes or 0):
        return queue
    return replace(queue, nodes=int(total), gpus=None)


def _plugin_may_choose(client: Client) -> bool:
    """Whether a plugin of the site may put a job that names no partition into another one than the
    default."""
    try:
        shown = client.output("scontrol", "show", "config")
    except SchedulerError:
        return False
    return reports.settings(shown).get("JobSubmitPlugins", "(null)") not in ("", "(null)")


def _directives(job: Job, site: Site) -> Options:
    """The options of the directives of site and job, in the order in which sbatch reads them."""
    lines = (*site.directives, *job.resources.directives)
    options = [option for line in lines for option in GRAMMAR.parse_line(f" {line}").options]
    return Options(options)


def _queues(rows: list[list[str]], gpu_type: str | None) -> list[Queue]:
    """The partitions of sinfo's rows. A partition has a row for each kind of node and limit."""
    grouped: dict[str, list[list[str]]] = defaultdict(list)
    for row in rows:
        grouped[row[0].rstrip("*")].append(row)
    queues = []
    for name, own in grouped.items():
        _, state, limit, size, _, _ = own[0]
        fewest, _, most = size.rpartition("-")
        groups = [(_gpus(row[5], gpu_type), int(row[4])) for row in own if row[4].isdecimal()]
        nodes = sum(number for _, number in groups)
        others = {kind for row in own for kind in reports.gpus(row[5])}
        queues.append(
            Queue(
                name=name,
                closed="" if state == "up" else state,
                longest=reports.seconds(limit),
                fewest_nodes=int(fewest) if fewest.isdecimal() else 1,
                most_nodes=int(most) if most.isdecimal() else None,
                gpus=tuple(groups) if nodes else None,
                other_gpus="" if any(gpus for gpus, _ in groups) else ", ".join(sorted(others)),
                nodes=nodes or None,  # 0: those of a cloud are all switched off
            )
        )
    return queues


def _gpus(resources: str, gpu_type: str | None) -> int:
    """The GPUs of a node in sinfo's `%G`, such as `gpu:a100:4(S:0-1),lustre:1`. A type is only
    compared if the node reports one."""
    found = reports.gpus(resources)
    if gpu_type is None:
        return sum(found.values())
    return found.get(gpu_type, 0) + found.get("", 0)
