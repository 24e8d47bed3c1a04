"""What Slurm tells of its partitions and nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_amp.config.schema import Job
from hpc_amp.config.units import parse_duration
from hpc_amp.errors import SchedulerError
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import run_command


def node_architectures(job: Job) -> set[str]:
    """The architectures of the nodes in the job's partition, as `uname -m` gives them; empty where
    Slurm does not answer."""
    try:
        answer = run_command(["scontrol", "--oneliner", "show", "nodes"])
    except SchedulerError:
        return set()
    names = set()
    queue = job.resources.queue
    for line in answer.stdout.splitlines():
        facts = dict(part.partition("=")[::2] for part in line.split())
        if queue and "Partitions" in facts and queue not in facts["Partitions"].split(","):
            continue
        if "Arch" in facts:
            names.add(facts["Arch"])
    return names


def check_limits(job: Job) -> Iterator[Finding]:
    """The limits of the job's partition, as sinfo tells them; nothing where it does not answer."""
    resources = job.resources
    try:
        answer = run_command(["sinfo", "--noheader", "--format=%P|%a|%l|%D"])
    except SchedulerError:
        return
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 3]
    queues = {row[0].rstrip("*"): row for row in rows}
    wanted = resources.queue or next((r[0][:-1] for r in rows if r[0].endswith("*")), None)
    why = "Slurm would refuse the job, or never start it"
    if wanted is None or not queues:
        return
    chosen = [queues[part] for part in wanted.split(",") if part in queues]
    if not chosen:
        what = f"there is no partition {wanted}"
        fix = f"those that you see here are {', '.join(sorted(queues))}"
        yield Finding("sched", "error", what, why, fix)
        return
    if all(row[1] != "up" for row in chosen):
        fix = "choose another with job.queue"
        yield Finding("sched", "warning", f"the partition {wanted} is {chosen[0][1]}", why, fix)
    limits = [_seconds(row[2]) for row in chosen]
    walltime = parse_duration(resources.walltime)
    if all(limit is not None and limit < walltime for limit in limits):
        what = f"job.walltime {resources.walltime} is more than {wanted} allows ({chosen[0][2]})"
        fix = "make it shorter: a run goes on in its next attempt by itself"
        yield Finding("sched", "error", what, why, fix)
    total = sum(int(row[3]) for row in rows if row[0].rstrip("*") in wanted.split(","))
    if resources.nodes > total:
        what = f"job.nodes is {resources.nodes}, and {wanted} has {total}"
        yield Finding("sched", "error", what, why, "ask for fewer, or for another partition")


def _seconds(text: str) -> int | None:
    """Slurm's time limit: `1-00:00:00`, `30:00`; None for `infinite` and what is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
