"""What Cobalt's commands report about a cluster, for the draft of its site file."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Mapping

from hpc_amp.clients import Clients
from hpc_amp.config.schema import Resources
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.config.units import format_duration, parse_duration
from hpc_amp.errors import UsageError


def draft_site(draft: SiteDraft, clients: Clients, queue: str | None) -> None:
    """Add what Cobalt's commands report to a draft. `queue` is the queue to describe, or None for
    the default one. Raises UsageError if there is no such queue."""
    version = re.search(r"Cobalt (\d[\w.]*)", clients.output("qstat", "--version", quiet=True))
    title = f"Cobalt {version[1]}" if version else "Cobalt"
    name = re.sub(r"[-_]?\d+$", "", socket.gethostname().partition(".")[0])
    draft.add("description", f"{name}, {title}", "hostname; qstat --version")
    queues = _queues(clients.output("qstat", "-Q", "-l"))
    if queue is not None and queues and queue not in queues:
        raise UsageError(f"there is no queue {queue}", hint=f"the queues are {', '.join(queues)}")
    draft.facts += [f"queue {_described(name, facts)}" for name, facts in queues.items()]
    if clients.has("nodelist"):
        rows = table(clients.output("nodelist"))
        counts = Counter(one for row in rows for one in row.get("Queue", "").split(":") if one)
        draft.facts += [
            f"{number} nodes in queue {name} (nodelist)" for name, number in counts.items()
        ]
    elif clients.has("partlist"):
        rows = table(clients.output("partlist"))
        draft.facts.append(f"{len(rows)} partitions (partlist)")
    draft.facts.append("a job gets whole nodes, as on every Cobalt")
    _add_queue(draft, queues, queue)
    draft.ask(
        "defaults.job.gpus_per_node",
        8,
        "How many GPUs has a node? Cobalt does not count them; --on-node looks.",
    )
    draft.ask("defaults.job.cpus_per_gpu", 16, "How many cores of a node are there for each GPU?")
    draft.ask(
        "directives",
        ["--attrs filesystems=home"],
        "Which attributes must every job have? Cobalt's commands do not say; a refusal of qsub or "
        "the first script in the guide of the cluster does.",
    )
    question = "Which project is charged? Many sites need one (-A)."
    draft.ask("defaults.job.account", "my_project", question)


def _queues(text: str) -> dict[str, dict[str, str]]:
    """The queues in the output of `qstat -Q -l`: a line `Name: ...`, then lines `Key : value`."""
    queues: dict[str, dict[str, str]] = {}
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if key == "Name" and colon:
            facts = queues.setdefault(value.strip(), {})
        elif colon and line.startswith(" "):
            facts[key.strip()] = value.strip()
    return queues


def table(text: str) -> list[dict[str, str]]:
    """The rows of a table of Cobalt by the names of their columns. A column begins where its name
    begins in the first line; a line of `=` follows."""
    lines = text.splitlines()
    if len(lines) < 2 or not lines[1].startswith("="):
        return []
    names = list(re.finditer(r"\S+", lines[0]))
    ends = [name.start() for name in names[1:]] + [None]
    return [
        {name[0]: line[name.start() : end].strip() for name, end in zip(names, ends, strict=True)}
        for line in lines[2:]
    ]


def _described(name: str, facts: Mapping[str, str]) -> str:
    shown = [f"{key} {value}" for key, value in facts.items() if value not in ("None", "")]
    return f"{name}: {', '.join(shown)}"


def _add_queue(
    draft: SiteDraft, queues: Mapping[str, Mapping[str, str]], wanted: str | None
) -> None:
    running = [name for name, facts in queues.items() if facts.get("State") == "running"]
    everyone = [name for name in running if queues[name].get("Users", "None") in ("None", "*")]
    name = wanted or next(iter(everyone or running), None)
    if wanted is None and "default" in everyone:
        name = "default"
    if name is None:
        draft.ask("defaults.job.queue", "default", "Which queue? `qstat -Q` lists them.")
        return
    source = "given with --queue"
    if wanted is None:
        source = "qstat -Q: it runs, and all users may use it"
    others = [one for one in running if one != name]
    if others:
        source += f". Other queues: {', '.join(others)}. A job chooses with job.queue."
    draft.add("defaults.job.queue", name, source)
    limit = queues.get(name, {}).get("MaxTime", "")
    if re.fullmatch(r"\d+:\d\d:\d\d", limit):
        hours, minutes, _ = map(int, limit.split(":"))
        seconds = hours * 3600 + minutes * 60
        if 0 < seconds < parse_duration(Resources().walltime):
            source = "qstat -Q: MaxTime, less than hpc-amp's default"
            draft.add("defaults.job.walltime", format_duration(seconds), source)
