"""The limits of Grid Engine's queues and parallel environments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import Client, run_command
from hpc_amp.schedulers.gridengine.grammar import names_of
from hpc_amp.schedulers.gridengine.slots import environment, several_nodes, slots_of_node
from hpc_amp.schedulers.queues import limit_seconds

_NEVER = "Grid Engine would refuse the job, or never start it"


def check_limits(job: Job, site: Site, client: Client) -> Iterator[Finding]:
    """Yield findings on the time limit of the job's queue and on the rule of its parallel
    environment. What a directive sets, or skip_directives leaves out, is not checked. None if Grid
    Engine does not answer."""
    own = {*site.skip_directives, *job.resources.skip_directives}
    for line in (*site.directives, *job.resources.directives):
        own |= names_of(line)
    try:
        queues = client.ask("qconf", "-sql").stdout.split()
        if not queues:
            return
        if "-q" not in own:
            yield from _check_queue(job, queues, client, own_walltime="-l h_rt" in own)
        if "-pe" not in own:
            yield from _check_environment(job, site, client)
    except SchedulerError:
        return


def check_configuration(client: Client) -> Iterator[Finding]:
    """Yield a finding if Grid Engine may not kill all ranks of a job that is deleted. None if it
    does not answer."""
    try:
        yield from _check_kill(client.output("qconf", "-sconf"))
    except SchedulerError:
        return


def check_site(site: Site) -> Iterator[Finding]:
    """Yield a finding if the parallel environment of jobs on several nodes gives a number of slots
    that the site does not name: a job that needs another number is refused (`check_limits`). None
    if Grid Engine does not answer."""
    if "slots_per_node" in site.options:
        return
    name = several_nodes(site)
    try:
        answer = run_command(["qconf", "-sp", name])
    except SchedulerError:
        return
    rule = fields_of(answer.stdout).get("allocation_rule", "")
    if rule.isdigit():
        what = f"{name} gives {rule} slots of a node, and the site has no options.slots_per_node"
        why = f"a job of several nodes is refused, unless its ranks need {rule} cores of each node"
        fix = f"set options.slots_per_node to {rule} in the site file"
        yield Finding("sched", "warning", what, why, fix)


def _check_queue(
    job: Job, queues: list[str], client: Client, *, own_walltime: bool
) -> Iterator[Finding]:
    queue = job.resources.queue
    if queue is None or not re.fullmatch(
        r"[\w.+-]+", queue
    ):  # it may also be a pattern, a list or a host
        return
    if queue not in queues:
        fix = f"the queues are {', '.join(sorted(queues))}"
        yield Finding("sched", "error", f"there is no queue {queue}", _NEVER, fix)
        return
    if own_walltime:
        return
    shown = fields_of(client.ask("qconf", "-sq", queue).stdout).get("h_rt", "")
    limit = limit_seconds(shown)
    if limit is not None and limit < parse_duration(job.resources.walltime):
        what = f"job.walltime {job.resources.walltime} is more than {queue} allows ({shown})"
        fix = "make it shorter: a run continues in its next job by itself"
        yield Finding("sched", "error", what, _NEVER, fix)


def _check_environment(job: Job, site: Site, client: Client) -> Iterator[Finding]:
    name, slots = environment(job, site), slots_of_node(job, site)
    if name is None:
        return
    rule = fields_of(client.ask("qconf", "-sp", name).stdout).get("allocation_rule")
    if rule is None:
        listed = client.ask("qconf", "-spl")
        if listed.returncode != 0 or name in listed.stdout.split():  # it may have other reasons
            return
        names = ", ".join(listed.stdout.split())
        what = f"there is no parallel environment {name}"
        fix = f"set options of the site file; the environments are {names or 'none'}"
        yield Finding("sched", "error", what, _NEVER, fix)
    elif rule.isdigit() and int(rule) != slots:
        what = f"{name} gives {rule} slots of a node, and the job expects {slots}"
        why = "the job would get another number of nodes, and fail at its start"
        fix = f"set options.slots_per_node to {rule} in the site file"
        yield Finding("sched", "error", what, why, fix)
    elif rule == "$pe_slots" and job.resources.nodes > 1:
        what = f"{name} gives all slots on one node, and the job wants {job.resources.nodes}"
        fix = "set options.parallel_environment in the site file: `qconf -spl` lists them"
        yield Finding("sched", "error", what, _NEVER, fix)
    elif rule in ("$fill_up", "$round_robin"):
        what = f"{name} gives slots by the rule {rule}, on any number of nodes"
        why = "a job that gets another number of nodes than it requested fails at its start"
        fix = "an environment with a number as its rule gives whole nodes"
        yield Finding("sched", "warning", what, why, fix)


def _check_kill(configuration: str) -> Iterator[Finding]:
    if job_is_killed_whole(configuration):
        return
    what = "Grid Engine ends the processes of a job by their process group only"
    why = "ranks of mpirun have groups of their own, and may outlive a job that is deleted"
    fix = "administrators can set ENABLE_ADDGRP_KILL=TRUE in execd_params (qconf -mconf)"
    yield Finding("sched", "warning", what, why, fix)


def fields_of(text: str) -> dict[str, str]:
    """The fields of an object in the output of `qconf -s...`: a name and a value in each line. A
    backslash at the end continues a line."""
    found = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            found[name] = value.strip()
    return found


def job_is_killed_whole(configuration: str) -> bool:
    """Whether Grid Engine kills all processes of a job at its end, according to the output of
    `qconf -sconf`."""
    text = fields_of(configuration).get("execd_params", "")
    wanted = r"(?i)\b(ENABLE_ADDGRP_KILL|USE_CGROUPS|USE_CPUSETS)=(true|1|yes)\b"
    return re.search(wanted, text) is not None
