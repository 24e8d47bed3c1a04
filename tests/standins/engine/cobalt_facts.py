"""What the commands and the server of the stand-in of Cobalt both know. The commands import no more
of the server: each is a process, and there are hundreds."""

from __future__ import annotations

import time

from .folder import Message

DEFAULTS: Message = {
    "nodes": ["n1", "n2", "n3", "n4"],
    "local_nodes": False,  # jobs run on this machine, and nodes are names
    "home": None,  # the user's home; None: as in the user database
    "path": [],  # folders that the site's profile adds to a login's PATH
    "login_environment": {},  # what the site sets for every login
    "run_remote": True,  # jobs start through ssh (R), else by the server itself (L)
    "queues": {"default": {}},  # of: state, max_minutes, min_minutes, max_queued
    "max_walltime": 720,  # what `-t 0` means where the queue has no limit; or None
    "minimum_minutes": 5,
    "minute": 60.0,  # how long a minute of walltime takes
    "start_delay": 2.0,  # how long a job is `starting`
    "linger": 15.0,  # how long a job that has ended is shown still, as `running` or `killing`
    "log_delay": 5.0,  # how long after the end the .cobaltlog gets its last line
    "epilogue_delay": 5.0,  # until what a job left behind is killed; None: never
    "force_kill_delay": 300.0,  # L: between SIGTERM and SIGKILL
    "dependency_delay": 30.0,  # until a broken dependency shows
    "owner": None,  # pid and start time of a process that the server must not outlive
    "down": False,  # True: all of it; "queue-manager": stopped; "killed": killed
    "may_submit_from_nodes": True,  # else nodes reach no part of Cobalt
    "filter_message": "",  # what the site's filter writes to qsub's standard error
    "filter_fails": "",  # the name of a filter that refuses
    "submit_status": 0,  # qsub's exit status for a job that was accepted
    "server_message": "",  # follows the job id on standard output
    "prologue_noise": "",  # what a prologue writes to a job's standard output
    "prologue_fails": False,
}


def stamp(when: float) -> str:
    """As in Cobalt's logs and in qstat."""
    return time.strftime("%a %b %d %H:%M:%S %Y +0000 (UTC)", time.gmtime(when))
