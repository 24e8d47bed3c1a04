"""What Grid Engine tells of its queues."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import run_command
from hpc_amp.schedulers.gridengine.slots import environment, slots_of_node

_NEVER = "Grid Engine would refuse the job, or never start it"


def check_limits(job: Job, site: Site) -> Iterator[Finding]:
    """The time limit of the job's queue, the rule of its parallel environment, and whether a job
    that is deleted takes its ranks along; nothing where Grid Engine does not answer."""
    try:
        queues = run_command(["qconf", "-sql"]).stdout.split()
        if not queues:
            return
        yield from _check_queue(job, queues)
        yield from _check_environment(job, site)
        yield from _check_kill(run_command(["qconf", "-sconf"]).stdout)
    except SchedulerError:
        return


def _check_queue(job: Job, queues: list[str]) -> Iterator[Finding]:
    queue = job.resources.queue
    if queue is None or not re.fullmatch(r"[\w.+-]+", queue):  # patterns, lists and hosts are more
        return
    if queue not in queues:
        fix = f"those that you see here are {', '.join(sorted(queues))}"
        yield Finding("sched", "error", f"there is no queue {queue}", _NEVER, fix)
        return
    found = re.search(r"^h_rt +(\S+)", run_command(["qconf", "-sq", queue]).stdout, re.MULTILINE)
    limit = _seconds(found[1]) if found else None
    if limit is not None and found is not None and limit < parse_duration(job.resources.walltime):
        what = f"job.walltime {job.resources.walltime} is more than {queue} allows ({found[1]})"
        fix = "make it shorter: a run goes on in its next job by itself"
        yield Finding("sched", "error", what, _NEVER, fix)


def _check_environment(job: Job, site: Site) -> Iterator[Finding]:
    name, slots = environment(job, site), slots_of_node(job, site)
    if name is None:
        return
    shown = run_command(["qconf", "-sp", name]).stdout
    rule = re.search(r"^allocation_rule +(\S+)", shown, re.MULTILINE)
    if rule is None:
        names = ", ".join(run_command(["qconf", "-spl"]).stdout.split())
        what = f"there is no parallel environment {name}"
        fix = f"set options of the site file; those that you see here are {names or 'none'}"
        yield Finding("sched", "error", what, _NEVER, fix)
    elif rule[1].isdigit() and int(rule[1]) != slots:
        what = f"{name} gives {rule[1]} slots of a node, and the job counts on {slots}"
        why = "the job would get another number of nodes, and fail at its start"
        fix = f"set options.slots_per_node to {rule[1]} in the site file"
        yield Finding("sched", "error", what, why, fix)
    elif rule[1] == "$pe_slots" and job.resources.nodes > 1:
        what = f"{name} gives all slots on one node, and the job wants {job.resources.nodes}"
        fix = "set options.parallel_environment in the site file: `qconf -spl` lists them"
        yield Finding("sched", "error", what, _NEVER, fix)
    elif rule[1] in ("$fill_up", "$round_robin"):
        what = f"{name} gives slots by the rule {rule[1]}, on as many nodes as it likes"
        why = "a job that gets another number of nodes than it was made for fails at its start"
        fix = "an environment with a number as its rule gives whole nodes"
        yield Finding("sched", "warning", what, why, fix)


def _check_kill(configuration: str) -> Iterator[Finding]:
    if job_is_killed_whole(configuration):
        return
    what = "Grid Engine ends the processes of a job by their process group only"
    why = "ranks of mpirun have groups of their own, and may outlive a job that is deleted"
    fix = "ask the administrators for ENABLE_ADDGRP_KILL=TRUE in execd_params (qconf -mconf)"
    yield Finding("sched", "warning", what, why, fix)


def job_is_killed_whole(configuration: str) -> bool:
    """Whether `qconf -sconf` says that all processes of a job end with it."""
    text = configuration.replace("\\\n", "")
    found = re.search(r"^execd_params +(.*)", text, re.MULTILINE | re.IGNORECASE)
    wanted = r"(?i)\b(ENABLE_ADDGRP_KILL|USE_CGROUPS|USE_CPUSETS)=(true|1|yes)\b"
    return found is not None and re.search(wanted, found[1]) is not None


def _seconds(limit: str) -> int | None:
    """`12:00:00`, or seconds; None for INFINITY, and where hosts have limits of their own."""
    if not re.fullmatch(r"\d+(:\d+){0,2}", limit):
        return None
    seconds = 0
    for part in limit.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
