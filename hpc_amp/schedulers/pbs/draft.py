"""What PBS's commands report about a cluster, for the draft of its site file and for `doctor`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_amp.clients import Clients
from hpc_amp.config.schema import Resources
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.config.units import format_duration, parse_duration
from hpc_amp.errors import UsageError
from hpc_amp.schedulers.pbs.qstat import NODE, QUEUE, SERVER, parse_qstat
from hpc_amp.schedulers.queues import limit_seconds

_QUEUES = ("qstat", "-Qf")
# Resources that every node has. Others, such as `system` or `gputype`, tell kinds of nodes apart.
_USUAL = {
    *("arch", "host", "vnode", "mem", "vmem", "ncpus", "ngpus", "nmics", "naccelerators", "hbmem"),
    *("accelerator_memory", "netwins", "hpmem", "mpiprocs", "ompthreads", "PBScrayhost"),
}
_RESOURCE = "resources_available."


@dataclass(frozen=True)
class Kind:
    """Nodes with the same hardware."""

    cpus: int
    gpus: int
    gigabytes: int
    labels: tuple[str, ...]
    """Further resources of the nodes that are text, as `name=value`."""
    whole: bool
    """Whether a job gets such nodes whole (`sharing`)."""

    def __str__(self) -> str:
        words = [f"{self.cpus} CPUs, {self.gigabytes} GiB, ngpus={self.gpus}", *self.labels]
        return ", ".join(words)


def draft_site(draft: SiteDraft, clients: Clients, queue: str | None) -> None:
    """Add what PBS's commands report to a draft. `queue` is the queue to describe, or None for the
    default one. Raises UsageError if there is no such queue."""
    servers = parse_qstat(clients.output("qstat", "-Bf"), SERVER)
    draft.name, server = next(iter(servers.items()), ("", {}))
    version = f"PBS {server.get('pbs_version', '')}".strip()
    source = "qstat -Bf: Server, pbs_version"
    draft.add("description", f"{draft.name or 'a cluster'}, {version}", source)
    queues = parse_qstat(clients.output(*_QUEUES), QUEUE)
    if queue is not None and queues and queue not in queues:
        raise UsageError(f"there is no queue {queue}", hint=f"the queues are {', '.join(queues)}")
    draft.facts += [f"queue {_described(name, facts)}" for name, facts in queues.items()]
    kinds = _kinds(parse_qstat(clients.output("pbsnodes", "-a"), NODE))
    draft.facts += [f"{number} nodes: {kind}" for kind, number in kinds.most_common()]
    _add_queue(draft, server, queues, queue)
    _add_nodes(draft, kinds)
    _add_sharing(draft, kinds, queues.get(str(draft.value("defaults.job.queue")), {}))
    draft.ask(
        "defaults.job.account",
        "my_project",
        "Which project is charged? PBS's commands do not say whether one is needed (-A).",
    )
    components = re.findall(r"plm:(\w+)", _open_mpi(clients))
    if components and "tm" not in components:
        draft.ask(
            "setup",
            "export OMPI_MCA_plm_rsh_agent=/sw/bin/pbs-agent\n",
            "This Open MPI is built without PBS's interface (ompi_info has no plm tm), so mpirun "
            "starts processes by ssh, and PBS does not end them. docs/sites.md, Open MPI and PBS, "
            "has an agent.",
        )


def _open_mpi(clients: Clients) -> str:
    """The components of Open MPI on this machine; empty without it."""
    if not clients.has("ompi_info"):
        return ""
    return clients.output("ompi_info", "--parsable", "--param", "plm", "all")


def _described(name: str, facts: Mapping[str, str]) -> str:
    words = [f"{facts.get('queue_type', '?').lower()}"]
    words += [state for state in ("enabled", "started") if facts.get(state) == "False"]
    closed = [f"not {word}" for word in words[1:]]
    limits = [f"{key}={facts[key]}" for key in facts if re.match(r"resources_(max|min)\.", key)]
    more = [
        key for key in ("from_route_only", "acl_user_enable", "acl_group_enable") if key in facts
    ]
    more = [f"{key}={facts[key]}" for key in more if facts[key] == "True"]
    if "route_destinations" in facts:
        more.append(f"leads to {facts['route_destinations']}")
    return f"{name}: {', '.join([words[0], *closed, *limits, *more])}"


def _kinds(vnodes: Mapping[str, Mapping[str, str]]) -> Counter[Kind]:
    """The kinds of nodes with their numbers. A node may consist of several vnodes, which have the
    same host."""
    hosts: dict[str, list[Mapping[str, str]]] = {}
    for name, facts in vnodes.items():
        hosts.setdefault(facts.get(f"{_RESOURCE}host", name), []).append(facts)
    kinds: Counter[Kind] = Counter()
    for parts in hosts.values():
        labels = {
            f"{key.removeprefix(_RESOURCE)}={value}"
            for facts in parts
            for key, value in facts.items()
            if key.startswith(_RESOURCE)
            and key.removeprefix(_RESOURCE) not in _USUAL
            and re.fullmatch(r"[A-Za-z][\w.-]*", value)
            and value not in ("True", "False")
        }
        labels |= {f"queue={facts['queue']}" for facts in parts if "queue" in facts}
        kinds[
            Kind(
                sum(_number(facts, "ncpus") for facts in parts),
                sum(_number(facts, "ngpus") for facts in parts),
                round(sum(_gigabytes(facts.get(f"{_RESOURCE}mem", "")) for facts in parts)),
                tuple(sorted(labels)),
                any("excl" in facts.get("sharing", "") for facts in parts),
            )
        ] += 1
    return kinds


def _number(facts: Mapping[str, str], name: str) -> int:
    text = facts.get(_RESOURCE + name, "")
    return int(text) if text.isdecimal() else 0


def _gigabytes(text: str) -> float:
    found = re.fullmatch(r"(\d+)([kmgtp]?)[bw]?", text, re.IGNORECASE)
    if found is None:
        return 0
    return int(found[1]) * 1024.0 ** (" kmgtp".index(found[2].lower() or " ") - 3)


def _add_queue(
    draft: SiteDraft,
    server: Mapping[str, str],
    queues: Mapping[str, Mapping[str, str]],
    wanted: str | None,
) -> None:
    usable = [name for name, facts in queues.items() if _takes_jobs(facts)]
    default = server.get("default_queue", "").partition("@")[0]
    name = wanted or (default if default in queues or not queues else "")
    source = "given with --queue" if wanted else "qstat -Bf: default_queue"
    if not name and usable:
        name, source = usable[0], "qstat -Qf: the first that is enabled and started"
    if not name:
        draft.ask("defaults.job.queue", "gpu", "Which queue? `qstat -Q` lists them.")
        return
    others = [one for one in usable if one != name]
    if others:
        source += f". Other queues (qstat -Qf): {', '.join(others)}. A job chooses with job.queue."
    draft.add("defaults.job.queue", name, source)
    limit = limit_seconds(queues.get(name, {}).get("resources_max.walltime", ""))
    if limit is not None and limit < parse_duration(Resources().walltime):
        source = "qstat -Qf: resources_max.walltime, less than hpc-amp's default"
        draft.add("defaults.job.walltime", format_duration(limit), source)


def _takes_jobs(facts: Mapping[str, str]) -> bool:
    return (
        facts.get("enabled", "True") == "True"
        and facts.get("started", "True") == "True"
        and facts.get("from_route_only", "False") != "True"
    )


def _add_nodes(draft: SiteDraft, kinds: Counter[Kind]) -> None:
    with_gpus = [kind for kind, _ in kinds.most_common() if kind.gpus]
    if not kinds:
        question = "How many GPUs has a node? pbsnodes does not answer; --on-node looks."
        draft.ask("defaults.job.gpus_per_node", 4, question)
        return
    if not with_gpus:
        draft.add("gpu_request", "none", "pbsnodes -a: no node has resources_available.ngpus")
        source = "pbsnodes -a: PBS counts no GPUs. If the nodes have some (--on-node looks), write "
        source += "their number here and leave gpu_request: none."
        draft.add("defaults.job.gpus_per_node", 0, source)
        return
    kind = with_gpus[0]
    draft.add("gpu_request", "ngpus", f"pbsnodes -a: resources_available.ngpus = {kind.gpus}")
    seen = f"pbsnodes -a: {kinds[kind]} nodes with {kind}"
    labels = [label for label in kind.labels if not label.startswith("queue=")]
    if len(kinds) > 1 and labels:
        shown = "; ".join(str(one) for one in kinds)
        question = "Shall every chunk name its kind of node? pbsnodes -a shows kinds that differ: "
        draft.ask("chunk", labels[:1], question + shown)
    draft.add("defaults.job.gpus_per_node", kind.gpus, seen)
    if kind.cpus >= kind.gpus:
        source = f"pbsnodes -a: {kind.cpus} ncpus of such a node, divided among {kind.gpus} GPUs"
        draft.add("defaults.job.cpus_per_gpu", kind.cpus // kind.gpus, source)


def _add_sharing(draft: SiteDraft, kinds: Counter[Kind], queue: Mapping[str, str]) -> None:
    place = queue.get("resources_default.place", "")
    if "excl" in place or (kinds and all(kind.whole for kind in kinds)):
        seen = f"resources_default.place={place}" if "excl" in place else "sharing of pbsnodes -a"
        draft.facts.append(f"a job gets whole nodes ({seen})")
        return
    draft.ask(
        "directives",
        ["-l place=scatter:excl"],
        "Shall every job have whole nodes? Jobs share nodes here (pbsnodes -a: sharing). A shared "
        "node disturbs measurements, and PBS only counts GPUs unless its cgroups hook is enabled.",
    )
