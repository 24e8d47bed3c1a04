"""Cobalt's `qsub`, for a run and for the tasks of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_amp.schedulers.answers import Submission
from hpc_amp.schedulers.base import retried, run_submit_command, submission_environment

OWN_VARIABLES = ("COBALT_CONFIG_FILES", "COBALT_PROJ")
LOST = r"timed out|Connection reset|BadStatusLine|Broken pipe|EOF occurred|Server Failure"
"""Messages of qsub after which the queue manager may have accepted the job although it did not
answer."""

AWAY = r":cn:|Failed to connect|Connection refused|No route to host|Network is unreachable"
"""Messages of clients that did not reach a component of Cobalt. `:cn:` precedes the name of a
component that the name server does not know."""


@retried
def qsub(options: Sequence[str], script: Path, environ: Mapping[str, str]) -> Submission:
    """Submit a script. Raises SchedulerError if it is refused, and UnclearError if it is unknown
    whether Cobalt accepted the job."""
    return run_submit_command(
        ["qsub", *options, str(script)],
        environ=submission_environment(environ, *OWN_VARIABLES),
        folder=script.parent,
        job_id=r"^(\d+)(?: .*)?$",  # a message of the server may follow the id
        lost=LOST,
        away=AWAY,
    )
