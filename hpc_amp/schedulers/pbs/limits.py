"""The limits of the queues of PBS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import Client
from hpc_amp.schedulers.pbs.grammar import GRAMMAR
from hpc_amp.schedulers.pbs.qstat import QUEUE, SERVER, parse_qstat
from hpc_amp.schedulers.queues import Queue, Request, check_queues, limit_seconds


def check_limits(job: Job, site: Site, client: Client) -> Iterator[Finding]:
    """Yield findings for a job that its queue does not allow. A routing queue allows what one of
    its destinations does. None if PBS does not answer."""
    lines = (*site.directives, *job.resources.directives)
    options = [option for line in lines for option in GRAMMAR.parse_line(f" {line}").options]
    entries = {name for option in options for name, _ in GRAMMAR.entries(option) or ()}
    named = next((option.value for option in options[::-1] if option.name == "q"), None)
    skipped = {*site.skip_directives, *job.resources.skip_directives}
    if named is None and "-q" not in skipped:
        named = job.resources.queue
    try:
        found = parse_qstat(client.output("qstat", "-Qf"), QUEUE)
        ((server, attributes), *_) = parse_qstat(client.output("qstat", "-Bf"), SERVER).items()
        named = named or attributes.get("default_queue")
    except (SchedulerError, ValueError):
        return
    if not found or named is None or "@" in named:  # the queue of another server
        return
    destinations = _destinations(named, found, server)
    if destinations is None:
        return
    own = {*entries, *(one.removeprefix("-l ") for one in skipped)}
    walltime = None if "walltime" in own else parse_duration(job.resources.walltime)
    request = Request(
        nodes=None if own & {"select", "nodes"} else job.resources.nodes, gpus=0, walltime=walltime
    )
    queues = [_queue(name, values) for name, values in found.items()]
    yield from check_queues(request, queues, destinations, "queue")


def _destinations(
    name: str, queues: Mapping[str, Mapping[str, str]], server: str
) -> list[str] | None:
    """The queues that may run a job in the queue `name`. None if another server than `server` may
    run it, whose queues are not known here."""
    own = queues.get(name, {})
    if own.get("queue_type") != "Route":
        return [name]
    names = []
    for destination in own.get("route_destinations", "").split(","):
        queue, _, host = destination.strip().partition("@")
        if host and host.partition(":")[0].partition(".")[0] != server.partition(".")[0]:
            return None
        names.append(queue)
    return [one for one in names if one in queues] or [name]


def _queue(name: str, values: Mapping[str, str]) -> Queue:
    def number(key: str) -> int | None:
        text = values.get(key, "")
        return int(text) if text.isdecimal() else None

    closed = "stopped" if values.get("started") == "False" else ""
    return Queue(
        name=name,
        closed="disabled" if values.get("enabled") == "False" else closed,
        longest=limit_seconds(values.get("resources_max.walltime", "")),
        fewest_nodes=number("resources_min.nodect") or 1,
        most_nodes=number("resources_max.nodect"),
        indirect=values.get("queue_type") == "Route" or values.get("from_route_only") == "True",
    )
