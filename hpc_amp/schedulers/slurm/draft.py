"""What Slurm's commands report about a cluster, for the draft of its site file."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpc_amp.clients import Clients
from hpc_amp.config.schema import Resources
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.config.units import format_duration, parse_duration
from hpc_amp.errors import UsageError
from hpc_amp.schedulers.slurm import reports

_NODES = ("scontrol", "--oneliner", "show", "nodes")
_PARTITIONS = ("scontrol", "--oneliner", "show", "partitions")
_CONFIG = ("scontrol", "show", "config")
_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%D|%c|%Z|%m|%G|%f|%h")


@dataclass
class Kind:
    """Nodes of a partition that have the same hardware."""

    cpus: int
    """The CPUs that jobs can have."""
    threads: int
    """Threads of a core, which Slurm may count as CPUs."""
    megabytes: int
    gres: str
    features: str
    nodes: int = 0

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs of a node by type."""
        return reports.gpus(self.gres)

    @property
    def gpu_count(self) -> int:
        """All GPUs of a node."""
        return sum(self.gpus.values())

    def __str__(self) -> str:
        gres = f", {self.gres}" if self.gres else ""
        features = f", features {self.features}" if self.features else ""
        return f"{self.nodes} x {self.cpus} CPUs, {self.megabytes / 1024:.0f} GiB{gres}{features}"


@dataclass
class Partition:
    """A partition with its limits and its kinds of nodes."""

    name: str
    is_default: bool = False
    state: str = "up"
    limit: str = "infinite"
    share: str = "NO"
    """`OverSubscribe`."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The output of scontrol. Empty if it does not answer."""
    kinds: list[Kind] = field(default_factory=list)

    @property
    def gpu_kinds(self) -> list[Kind]:
        """The kinds of nodes with GPUs, the one with most nodes first."""
        kinds = [kind for kind in self.kinds if kind.gpu_count]
        return sorted(kinds, key=lambda kind: -kind.nodes)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(kind.nodes for kind in self.kinds)

    def __str__(self) -> str:
        words = [f"{self.name}{' (default)' if self.is_default else ''}: time limit {self.limit}"]
        if self.state.lower() != "up":
            words.append(f"state {self.state}")
        for name in ("MaxNodes", "AllowAccounts", "AllowQos", "AllowGroups"):
            if self.fields.get(name, "ALL") not in ("ALL", "UNLIMITED", "N/A"):
                words.append(f"{name}={self.fields[name]}")
        if self.fields.get("PreemptMode", "OFF") not in ("OFF", "N/A"):
            words.append(f"PreemptMode={self.fields['PreemptMode']}")
        if self.share != "NO":
            words.append(f"OverSubscribe={self.share}")
        return f"{', '.join(words)}; nodes: {'; '.join(map(str, self.kinds)) or 'none'}"


def draft_site(draft: SiteDraft, clients: Clients, queue: str | None) -> None:
    """Add what Slurm's commands report to a draft. `queue` is the partition to describe, or None
    for the one that fits best. Raises UsageError if there is no such partition."""
    config = reports.settings(clients.output(*_CONFIG))
    draft.name = config.get("ClusterName", "")
    version = config.get("SLURM_VERSION") or clients.output("sinfo", "--version").strip()
    draft.add(
        "description",
        f"{draft.name or 'a cluster'}, Slurm {version.rpartition(' ')[2]}".strip(),
        "scontrol show config: ClusterName, SLURM_VERSION",
    )
    partitions = _partitions(clients)
    if queue is not None and partitions and queue not in partitions:
        raise UsageError(
            f"there is no partition {queue}", hint=f"the partitions are {', '.join(partitions)}"
        )
    draft.facts += [f"partition {partition}" for partition in partitions.values()]
    _add_kill_wait(draft, config)
    _add_mpi(draft, clients)
    chosen = partitions.get(queue) if queue is not None else _best(list(partitions.values()))
    if chosen is not None:
        _add_queue(draft, chosen, list(partitions.values()), was_given=queue is not None)
        _add_gpus(draft, chosen, config)
        _add_sharing(draft, chosen, config)
        _add_features(draft, chosen)
    elif queue is not None:
        draft.add("defaults.job.queue", queue, "given; neither scontrol nor sinfo confirms it")
    else:
        draft.ask("defaults.job.queue", "gpu", "Which partition has the GPUs? `sinfo` lists them.")
    _add_account(draft, clients, config, chosen)


def _partitions(clients: Clients) -> dict[str, Partition]:
    """All partitions that this user sees, from scontrol, or from sinfo if that does not answer."""
    found: dict[str, Partition] = {}
    for fields in reports.records(clients.output(*_PARTITIONS)):
        name = fields.get("PartitionName")
        if name:
            found[name] = Partition(
                name,
                is_default=fields.get("Default") == "YES",
                state=fields.get("State", "UP").lower(),
                limit=fields.get("MaxTime", "UNLIMITED"),
                share=fields.get("OverSubscribe") or fields.get("Shared") or "NO",
                fields=fields,
            )
    nodes = reports.records(clients.output(*_NODES)) if found else []
    if not nodes:
        return _partitions_of_sinfo(clients, found)
    for node in nodes:
        if node.get("State", "").startswith("FUTURE"):
            continue
        cpus = node.get("CPUEfctv") or node.get("CPUTot") or "0"
        kind = _kind(
            (cpus, node.get("ThreadsPerCore", "1"), node.get("RealMemory", "0")),
            node.get("Gres", ""),
            node.get("AvailableFeatures") or node.get("Features") or "",
        )
        for name in node.get("Partitions", "").split(","):
            if name in found:
                _count(found[name], kind, 1)
    return found


def _partitions_of_sinfo(clients: Clients, known: dict[str, Partition]) -> dict[str, Partition]:
    found = dict(known)
    for row in reports.rows(clients.output(*_SINFO), 10):
        name, state, limit, nodes, cpus, threads, memory, gres, features, share = row
        partition = found.setdefault(
            name.removesuffix("*"),
            Partition(name.removesuffix("*"), name.endswith("*"), state, limit, share),
        )
        _count(partition, _kind((cpus, threads, memory), gres, features), _number(nodes))
    return found


def _kind(sizes: tuple[str, str, str], gres: str, features: str) -> Kind:
    cpus, threads, megabytes = map(_number, sizes)
    gres, features = ("" if text == "(null)" else text for text in (gres, features))
    return Kind(cpus, threads, megabytes, gres, features)


def _number(text: str) -> int:
    digits = text.rstrip("+")
    return int(digits) if digits.isdecimal() else 0


def _count(partition: Partition, kind: Kind, nodes: int) -> None:
    """Add nodes of a kind to a partition. Nodes whose GPUs are only attached to other cores, or
    whose memory differs by less than 2 %, count as the same kind."""
    for known in partition.kinds:
        if (known.cpus, known.threads, known.gpus, known.features) == (
            kind.cpus,
            kind.threads,
            kind.gpus,
            kind.features,
        ) and abs(known.megabytes - kind.megabytes) <= 0.02 * known.megabytes:
            known.nodes += nodes
            return
    partition.kinds.append(
        Kind(kind.cpus, kind.threads, kind.megabytes, kind.gres, kind.features, nodes)
    )


def _best(partitions: Sequence[Partition]) -> Partition | None:
    """The partition for jobs with GPUs: the default one if it has some, else the one with most such
    nodes. Without GPUs, the default partition."""
    usable = [one for one in partitions if one.state == "up" and one.kinds] or list(partitions)
    with_gpus = [one for one in usable if one.gpu_kinds]
    order = sorted(
        with_gpus or usable,
        key=lambda one: (
            not one.is_default,
            one.fields.get("PreemptMode", "OFF") not in ("OFF", "N/A"),
            -sum(kind.nodes for kind in one.gpu_kinds) or -one.nodes,
        ),
    )
    return order[0] if order else None


def _add_kill_wait(draft: SiteDraft, config: Mapping[str, str]) -> None:
    if "KillWait" in config:
        draft.facts.append(
            f"KillWait is {config['KillWait']}: a job that is cancelled has this time to save a "
            "checkpoint (the script reads it on the node; job.grace overrides it)"
        )


def _add_mpi(draft: SiteDraft, clients: Clients) -> None:
    types = reports.mpi_types(clients.output("srun", "--mpi=list", with_errors=True))
    usable = [one for one in types if one not in ("none", "openmpi")]
    if not usable:
        question = "srun --mpi=list names no type for programs with MPI (launch.mpi)."
        draft.ask("srun_mpi", "pmix", question)
        return
    order = [name for name in usable if name.startswith("pmix")] or usable
    best = order[0] if "pmix" not in order else "pmix"
    source = f"srun --mpi=list: {', '.join(types)}. For programs with MPI (launch.mpi)."
    if "cray_shasta" in types and best != "cray_shasta":
        source += " cray_shasta is for Cray's MPI."
    draft.add("srun_mpi", best, source)


def _add_queue(
    draft: SiteDraft, chosen: Partition, partitions: Sequence[Partition], *, was_given: bool
) -> None:
    reason = "given with --queue" if was_given else "it is the default partition"
    if not was_given and not chosen.is_default:
        reason = "it has most nodes with GPUs" if chosen.gpu_kinds else "the first that is up"
    source = f"scontrol show partitions, sinfo: {reason}."
    others = [one for one in partitions if one is not chosen and one.gpu_kinds]
    if others:
        source += f"\nOther partitions with GPUs: {', '.join(one.name for one in others)}. A job "
        source += "chooses one with job.queue."
    different = [one for one in others if not _alike(one, chosen)]
    if different:
        source += (
            f"\nThe nodes of {', '.join(one.name for one in different)} differ: draft its own "
            f"site, hpc-amp site draft NAME --queue {different[0].name}, or set job.gpus_per_node "
            "and job.cpus_per_gpu in the job."
        )
    draft.add("defaults.job.queue", chosen.name, source)
    limit, usual = reports.seconds(chosen.limit), parse_duration(Resources().walltime)
    if limit is not None and limit < usual:
        draft.add(
            "defaults.job.walltime",
            format_duration(limit),
            f"scontrol show partitions: MaxTime={chosen.limit}, less than hpc-amp's default",
        )


def _alike(one: Partition, other: Partition) -> bool:
    """Whether most nodes of two partitions have the same GPUs and CPUs."""
    first, second = (part.gpu_kinds[0] if part.gpu_kinds else None for part in (one, other))
    if first is None or second is None:
        return first is second
    return (first.gpus, first.cpus) == (second.gpus, second.cpus)


def _add_gpus(draft: SiteDraft, chosen: Partition, config: Mapping[str, str]) -> None:
    kinds = chosen.gpu_kinds
    if not kinds:
        draft.add("gpu_request", "none", f"scontrol show nodes: no Gres=gpu in {chosen.name}")
        draft.add(
            "defaults.job.gpus_per_node",
            0,
            f"scontrol show nodes: Slurm counts no GPUs in {chosen.name}. If the nodes have some "
            "(--on-node looks), write their number here and leave gpu_request: none.",
        )
        return
    kind, select = kinds[0], config.get("SelectType", "")
    counts: dict[str, int] = {}
    for one in reversed(kinds):
        counts |= one.gpus
    gpu_type, gpus = max(kind.gpus.items(), key=lambda item: item[1])
    form = "gpus-per-node"
    if select and "cons_tres" not in select:
        form = "gres"
    options = f"--gpus-per-node={gpus}" if form == "gpus-per-node" else f"--gres=gpu:{gpus}"
    source = f"scontrol show nodes: Gres={kind.gres}; scontrol show config: "
    source += f"SelectType={select or 'unknown'}. Written as {options}."
    if form == "gpus-per-node":
        source += " `gres` writes --gres=gpu:N, which works too."
    else:
        source += " --gpus-per-node needs select/cons_tres."
    draft.add("gpu_request", form, source)
    names = ", ".join(f"{name or 'no name'} ({count} in a node)" for name, count in counts.items())
    if len(counts) > 1 and gpu_type:
        source = f"scontrol show nodes: {chosen.name} has several types of GPUs: {names}. This is "
        source += "the one on most nodes. Without the key, a job gets any of them."
        draft.add("gpu_type", gpu_type, source)
    elif gpu_type:
        source = f"scontrol show nodes: all GPUs of {chosen.name} are {gpu_type}, so no type has "
        draft.ask("gpu_type", gpu_type, source + "to be requested.")
    cpus = kind.cpus
    nodes = f"{kind.nodes} of {chosen.nodes} nodes of {chosen.name}"
    draft.add(
        "defaults.job.gpus_per_node", gpus, f"scontrol show nodes: Gres={kind.gres} ({nodes})"
    )
    if cpus >= gpus:
        threads = f", {kind.threads} threads of each core" if kind.threads > 1 else ""
        draft.add(
            "defaults.job.cpus_per_gpu",
            cpus // gpus,
            f"scontrol show nodes: {cpus} CPUs of a node{threads}, divided among {gpus} GPUs",
        )


def _add_sharing(draft: SiteDraft, chosen: Partition, config: Mapping[str, str]) -> None:
    select = config.get("SelectType", "unknown")
    seen = f"OverSubscribe={chosen.share} of {chosen.name}, SelectType={select}"
    if chosen.share.startswith("EXCLUSIVE") or select == "select/linear":
        draft.facts.append(f"a job gets whole nodes ({seen})")
        return
    memory = _memory_limit(chosen, config)
    draft.ask(
        "directives",
        ["--exclusive"],
        f"Shall every job have whole nodes? Jobs share nodes here: {seen} (scontrol). A shared "
        "node disturbs measurements, and a whole one may be charged whole.",
    )
    if memory:
        node = f"{chosen.kinds[0].megabytes / 1024:.0f} GiB" if chosen.kinds else "an unknown size"
        question = f"Without job.memory, a job gets {memory} (scontrol). A node has {node}."
        draft.ask("defaults.job.memory", "64GiB", question)


def _add_features(draft: SiteDraft, chosen: Partition) -> None:
    """Features that only the nodes with the chosen GPUs have."""
    best = chosen.gpu_kinds[0] if chosen.gpu_kinds else None
    others = [kind for kind in chosen.kinds if kind is not best]
    if best is None or not others:
        return
    elsewhere = {name for kind in others for name in kind.features.split(",")}
    own = [name for name in best.features.split(",") if name and name not in elsewhere]
    if not own:
        return
    text = f"only nodes with {best.gres or 'these GPUs'} have the features {', '.join(own)} "
    text += "(scontrol show nodes)"
    if "directives" in draft.entries:
        draft.facts.append(f"{text}: --constraint={own[0]} chooses them")
    else:
        question = f"Shall every job name its kind of node? In {chosen.name}, {text}."
        draft.ask("directives", [f"--constraint={own[0]}"], question)


def _memory_limit(chosen: Partition, config: Mapping[str, str]) -> str:
    """The memory that a job gets without a request, if Slurm counts memory."""
    if "MEMORY" not in config.get("SelectTypeParameters", "").upper():
        return ""
    for fields in (chosen.fields, config):
        for name, unit in (("DefMemPerCPU", "CPU"), ("DefMemPerNode", "node")):
            value = fields.get(name, "UNLIMITED")
            if value.isdecimal() and value != "0":
                return f"{value} MiB for each {unit} ({name})"
    return "the whole memory of its nodes, which keeps other jobs out (DefMemPerNode=UNLIMITED)"


def _add_account(
    draft: SiteDraft, clients: Clients, config: Mapping[str, str], chosen: Partition | None
) -> None:
    kind = config.get("AccountingStorageType", "")
    if kind.endswith("/none"):
        draft.facts.append("no accounts (scontrol show config: AccountingStorageType is none)")
        return
    user = getpass.getuser()
    query = ("sacctmgr", "--noheader", "--parsable2", "show")
    default = clients.output(*query, "user", user, "format=DefaultAccount").strip()
    shown = clients.output(
        *query, "associations", "where", f"user={user}", "format=Account,Partition,QOS,DefaultQOS"
    )
    found = reports.rows(shown, 4)
    accounts = list(dict.fromkeys(row[0] for row in found if row[0]))
    allowed = "" if chosen is None else chosen.fields.get("AllowAccounts", "ALL")
    if allowed not in ("", "ALL"):
        accounts = [one for one in accounts if one in allowed.split(",")] or accounts
    if default.isprintable() and default and (default in accounts or not accounts):
        source = f"sacctmgr show user {user}: DefaultAccount."
    elif accounts:
        default = accounts[0]
        source = f"sacctmgr show associations where user={user}."
    else:
        draft.ask(
            "defaults.job.account",
            "my_project",
            "Which account is charged? sacctmgr does not name one. The guide of the cluster, or "
            "whoever gave you access, does. Many clusters have a default.",
        )
        return
    if len(accounts) > 1:
        source += f" All accounts: {', '.join(accounts)}."
    draft.add("defaults.job.account", default, source)
    levels = dict.fromkeys(name for row in found for name in row[2].split(",") if name)
    allowed = "" if chosen is None else chosen.fields.get("AllowQos", "ALL")
    if allowed not in ("", "ALL"):
        levels = {name: None for name in levels if name in allowed.split(",")} or levels
    usual = next((row[3] for row in found if row[3]), "")
    if levels:
        question = f"Which quality of service? sacctmgr shows {', '.join(levels)}"
        question += f"; the default is {usual}." if usual else "; there may be a default."
        draft.ask("defaults.job.directives", [f"--qos={usual or next(iter(levels))}"], question)
