"""What Grid Engine's commands report about a cluster, for the draft of its site file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_amp.clients import Clients
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.errors import UsageError
from hpc_amp.schedulers.gridengine.limits import fields_of, job_is_killed_whole

_GPUS = ("gpu", "gpus", "ngpus", "gpu_card", "gpu_cards", "num_gpu", "cuda")
_MEMORY = ("h_vmem", "mem_free", "m_mem_free", "h_rss", "virtual_free", "mem_req", "s_vmem")
_MOST_QUEUES = 20
_MOST_HOSTS = 20
_ENVIRONMENT = "parallel_environment"


@dataclass(frozen=True)
class Host:
    """A host that runs jobs."""

    name: str
    processors: int
    gpus: int
    gpus_known: bool
    """Whether `gpus` are all of its GPUs. If not, they are those that are free now."""

    def __str__(self) -> str:
        count = f"{self.gpus} GPUs" if self.gpus_known else f"{self.gpus} GPUs free now"
        return f"{self.processors} processors, {count}"


@dataclass(frozen=True)
class Complex:
    """A line of `qconf -sc`: a resource."""

    name: str
    shortcut: str
    consumable: str
    """`NO`; `YES`: counted for each slot; `JOB` or `HOST`: once."""


def draft_site(
    draft: SiteDraft, clients: Clients, queue: str | None, master: Path | None = None
) -> None:
    """Add what Grid Engine's commands report to a draft. `queue` is the queue to describe, or None
    to leave it to Grid Engine. `master` is the file with the master's name. Raises UsageError if
    there is no such queue."""
    version = clients.output("qstat", "-help", quiet=True).partition("\n")[0].strip()
    draft.name = os.environ.get("SGE_CLUSTER_NAME", "") or _master(master)
    source = "SGE_CLUSTER_NAME or act_qmaster; qstat -help"
    title = f"{draft.name or 'a cluster'}, {version or 'Grid Engine'}"
    draft.add("description", title, source)
    queues = clients.output("qconf", "-sql").split()
    if queue is not None and queues and queue not in queues:
        raise UsageError(f"there is no queue {queue}", hint=f"the queues are {', '.join(queues)}")
    shown = {
        name: fields_of(clients.output("qconf", "-sq", name)) for name in queues[:_MOST_QUEUES]
    }
    draft.facts += [f"queue {_described(name, fields)}" for name, fields in shown.items()]
    rules = _rules(clients)
    draft.facts += [f"parallel environment {name}: {rule}" for name, rule in rules.items()]
    if queue is not None:
        draft.add("defaults.job.queue", queue, "given with --queue")
        rules = _of_queue(rules, shown.get(queue, {}))
    elif len(queues) > 1:
        question = f"Which queue? Grid Engine chooses among {', '.join(queues)} (qconf -sql)."
        draft.ask("defaults.job.queue", queues[0], question)
    resources = _resources(clients.output("qconf", "-sc"))
    gpu = _gpu_resource(resources)
    _add_options(draft, rules, resources, gpu, _hosts(clients, gpu))
    _add_account(draft, clients)


def _master(file: Path | None) -> str:
    root = Path(os.environ.get("SGE_ROOT", "/var/lib/gridengine"))
    cell = os.environ.get("SGE_CELL") or "default"
    try:
        text = (file or root / cell / "common" / "act_qmaster").read_text(errors="replace")
    except OSError:
        return ""
    return text.strip().partition(".")[0]


def _described(name: str, fields: Mapping[str, str]) -> str:
    words = [f"{key} {fields[key]}" for key in ("hostlist", "slots", "pe_list") if key in fields]
    for key in ("h_rt", "user_lists", "projects"):
        if fields.get(key, "NONE") not in ("NONE", "INFINITY"):
            words.append(f"{key} {fields[key]}")
    return f"{name}: {', '.join(words) or 'unknown'}"


def _rules(clients: Clients) -> dict[str, str]:
    """The allocation rules of parallel environments."""
    names = clients.output("qconf", "-spl").split()
    found = {}
    for name in names[:_MOST_QUEUES]:
        rule = fields_of(clients.output("qconf", "-sp", name)).get("allocation_rule")
        if rule:
            found[name] = rule
    return found


def _of_queue(rules: Mapping[str, str], queue: Mapping[str, str]) -> dict[str, str]:
    """The environments that a queue has. All if that is unknown."""
    listed = set(re.split(r"[\s,]+", queue.get("pe_list", "")))
    return {name: rule for name, rule in rules.items() if name in listed} or dict(rules)


def _resources(text: str) -> dict[str, Complex]:
    """The resources in the output of `qconf -sc`."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and not line.startswith("#"):
            found[words[0]] = Complex(words[0], words[1], words[5].upper())
    return found


def _gpu_resource(resources: Mapping[str, Complex]) -> Complex | None:
    found = (resources.get(name) for name in _GPUS)
    return next((one for one in found if one is not None and one.consumable != "NO"), None)


def _hosts(clients: Clients, gpu: Complex | None) -> list[Host]:
    """The hosts. What they have of a consumable is read from their `complex_values`, because qhost
    shows what is free now."""
    command = ["qhost"] if gpu is None else ["qhost", "-F", gpu.name]
    hosts: list[Host] = []
    for line in clients.output(*command).splitlines():
        words = line.split()
        resource = re.search(r"^\s+.*\b\w\w:(\w+)=([\d.]+)", line)
        if resource is not None and hosts:
            hosts[-1] = replace(hosts[-1], gpus=int(float(resource[2])))
        elif len(words) >= 3 and not line.startswith((" ", "HOSTNAME", "-", "global")):
            processors = int(words[2]) if words[2].isdecimal() else 0
            hosts.append(Host(words[0], processors, 0, gpus_known=gpu is None))
    if gpu is None:
        return hosts
    asked = [_with_all_gpus(clients, host, gpu) for host in hosts[:_MOST_HOSTS]]
    return asked + hosts[_MOST_HOSTS:]


def _with_all_gpus(clients: Clients, host: Host, gpu: Complex) -> Host:
    """The host with all of its GPUs, if its `complex_values` has them."""
    fields = fields_of(clients.output("qconf", "-se", host.name, quiet=True))
    names = "|".join(map(re.escape, (gpu.name, gpu.shortcut)))
    found = re.search(rf"(?:^|[\s,])(?:{names})=(\d+)", fields.get("complex_values", ""))
    if found is not None:
        return replace(host, gpus=int(found[1]), gpus_known=True)
    # A load sensor may report GPUs that complex_values does not have.
    return replace(host, gpus_known=host.gpus == 0 and "complex_values" in fields)


def _add_options(
    draft: SiteDraft,
    rules: Mapping[str, str],
    resources: Mapping[str, Complex],
    gpu: Complex | None,
    hosts: Sequence[Host],
) -> None:
    for kind, number in Counter(map(str, hosts)).most_common():
        draft.facts.append(f"{number} hosts: {kind} (qhost)")
    counts = Counter(host.gpus for host in hosts if host.gpus and host.gpus_known)
    gpus = counts.most_common(1)[0][0] if counts else 0
    options: dict[str, str] = {}
    sources = []
    per_slot = gpu is not None and gpu.consumable == "YES"
    slots = _best_rule(rules, gpus if per_slot else 0)
    if slots is not None:
        options[_ENVIRONMENT], options["slots_per_node"] = slots
        sources.append(f"qconf -sp {slots[0]}: allocation_rule {slots[1]}, slots of each node")
    one = next((name for name, rule in rules.items() if rule == "$pe_slots"), None)
    if one is not None:
        options["one_node_environment"] = one
        sources.append(f"qconf -sp {one}: $pe_slots, all slots on one node")
    if gpu is not None:
        options["gpu_resource"] = gpu.name
        sources.append(f"qconf -sc: {gpu.name}, consumable {gpu.consumable}")
        form = "gpu-per-slot" if per_slot else "gpu"
        counted = "for each slot" if per_slot else "not for each slot"
        source = f"qconf -sc: consumable {gpu.consumable}, so {gpu.name} is counted {counted}"
        draft.add("gpu_request", form, source)
        if gpus:
            source = f"qconf -se: complex_values {gpu.name}={gpus} of {counts[gpus]} hosts"
            draft.add("defaults.job.gpus_per_node", gpus, source)
        else:
            seen = max((host.gpus for host in hosts), default=0)
            question = (
                f"How many GPUs has a node? complex_values of `qconf -se HOST` does not say it. At "
                f"most {seen} are free now (qhost -F {gpu.name})."
            )
            draft.ask("defaults.job.gpus_per_node", seen or 4, question)
    elif hosts:
        draft.add("gpu_request", "none", "qconf -sc: no consumable resource for GPUs")
        source = (
            "Grid Engine counts no GPUs. If the nodes have some (--on-node looks), write their "
        )
        draft.add("defaults.job.gpus_per_node", 0, source + "number here.")
    memory = next((name for name in _MEMORY if name in resources), None)
    if memory is not None and resources[memory].consumable == "YES":
        options["memory_resource"] = memory
        sources.append(f"qconf -sc: {memory} is consumable")
    if options:
        draft.add("options", options, "\n".join(sources))
    if slots is not None and gpus:
        source = f"one slot is one core: {slots[1]} slots of a node, {gpus} GPUs"
        draft.add("defaults.job.cpus_per_gpu", max(1, int(slots[1]) // gpus), source)
    if slots is None:
        shown = ", ".join(f"{name} ({rule})" for name, rule in rules.items()) or "none"
        draft.facts.append(
            "no parallel environment gives the same number of slots on each node (qconf -spl: "
            f"{shown}): jobs on several nodes need one whose allocation_rule is a number"
        )


def _best_rule(rules: Mapping[str, str], gpus: int) -> tuple[str, str] | None:
    """The environment with a fixed number of slots of each node, and this number: the highest one.
    If GPUs are counted for each slot, it has to divide their number."""
    fixed = [(name, rule) for name, rule in rules.items() if re.fullmatch(r"[1-9]\d*", rule)]
    fitting = [one for one in fixed if not gpus or gpus % int(one[1]) == 0]
    return max(fitting or fixed, key=lambda one: int(one[1]), default=None)


def _add_account(draft: SiteDraft, clients: Clients) -> None:
    configuration = clients.output("qconf", "-sconf")
    settings = fields_of(configuration)
    if configuration and not job_is_killed_whole(configuration):
        draft.facts.append(
            "processes of a deleted job may survive: execd_params has no ENABLE_ADDGRP_KILL "
            "(qconf -sconf)"
        )
    if settings.get("enforce_project", "false") != "false":
        projects: Sequence[str] = clients.output("qconf", "-sprjl", quiet=True).split()
        shown = f": {', '.join(projects[:8])}" if projects else ""
        question = f"Which project? Jobs need one (qconf -sconf: enforce_project){shown}"
        draft.ask("defaults.job.account", projects[0] if projects else "my_project", question)
