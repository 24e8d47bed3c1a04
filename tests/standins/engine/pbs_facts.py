"""What the commands and the server of the stand-in of PBS both know. The commands import no more
of the server: each is a process, and there are hundreds."""

from __future__ import annotations

from typing import Any

from .folder import Message
from .texts import hours

HOST = "head"
DEFAULTS: Message = {
    "nodes": ["n1", "n2", "n3", "n4"],
    "local_nodes": False,  # jobs run on this machine, and nodes are names
    "home": None,  # the user's home; None: as in the user database
    "shell": "/bin/sh",  # the user's login shell
    "path": [],  # folders that the site's profile puts in front of a login's PATH
    "login_environment": {},  # what the site sets for every job
    "node_resources": {"ncpus": 8, "mem": "4gb"},  # more names become known by being here
    "job_resources": [],  # names that a site defines for whole jobs, as `filesystems`
    "queues": {"workq": {}},  # the first is the default; of: max_walltime (s), max_queued
    "required": [],  # what the site's hook demands: `Account_Name`, or a resource's name
    "history": False,
    "history_off_refuses": "all",  # without history, `qstat -x` of these: or `finished` only
    "start_delay": 0.3,
    "kill_delay": 20.0,  # from SIGTERM to SIGKILL after qdel
    "walltime_lateness": 5.0,  # the mom looks at walltimes now and then
    "poll": 3.0,  # how often the mom looks whether a job's processes are gone
    "stageout_delay": 0.3,
    "stageout_retries": 32.0,  # how long a job is `E` whose output cannot be delivered
    "node_fail_requeue": 310.0,
    "owner": None,  # pid and start time of a process that the server must not outlive
    "down": False,
    "refuse_root": False,
    "may_submit_from_nodes": True,
    "submit_status": 0,  # qsub's exit status for a job that was accepted
    "hook_message": "",  # what a hook writes to qsub's standard error
    "prologue_noise": "",  # what a prologue writes to a job's standard output
}

Job = dict[str, Any]


def value_of(value: Any, other: Any) -> Any:
    """`other` for None."""
    return other if value is None else value


def exec_vnode(job: Job) -> str:
    """`(n1:ncpus=2:ngpus=1)+(n2:ncpus=2:ngpus=1)`."""
    counted = ("ncpus", "ngpus", "mem")
    return "+".join(
        "(" + ":".join([name, *(f"{key}={chunk[key]}" for key in counted if key in chunk)]) + ")"
        for name, chunk in job["vnodes"]
    )


def exec_host(job: Job) -> str:
    """`n1/0*2+n2/0*2`."""
    return "+".join(
        f"{name}/{index}" + (f"*{chunk['ncpus']}" if chunk["ncpus"] != 1 else "")
        for index, (name, chunk) in _indexed(job["vnodes"])
    )


def _indexed(vnodes: list[Any]) -> list[tuple[int, Any]]:
    seen: dict[str, int] = {}
    found = []
    for name, chunk in vnodes:
        found.append((seen.get(name, 0), (name, chunk)))
        seen[name] = seen.get(name, 0) + 1
    return found


def walltime_text(seconds: float | None) -> str:
    """`HH:MM:SS`."""
    return hours(value_of(seconds, 0))
