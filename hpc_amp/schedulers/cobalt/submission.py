"""`qsub` of Cobalt, for a job of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_amp.schedulers.answers import Submission
from hpc_amp.schedulers.base import asked_again, hand_in, submission_environment

OWN_VARIABLES = ("COBALT_CONFIG_FILES", "COBALT_PROJ")
LOST = r"timed out|Connection reset|BadStatusLine|Broken pipe|EOF occurred|Server Failure"
"""What qsub says where the queue manager may have the job although its answer did not come."""

AWAY = r":cn:|Failed to connect|Connection refused|No route to host|Network is unreachable"
"""What clients say where they did not reach a part of Cobalt: `:cn:` comes before the name of one
that the name server does not know."""


@asked_again
def qsub(options: Sequence[str], script: Path, environ: Mapping[str, str]) -> Submission:
    """Hand in a script. Raises SchedulerError where it is refused, and UnclearError where it is not
    known whether Cobalt has the job."""
    return hand_in(
        ["qsub", *options, str(script)],
        environ=submission_environment(environ, *OWN_VARIABLES),
        folder=script.parent,
        job_id=r"^(\d+)(?: .*)?$",  # a message of the server may follow the id
        lost=LOST,
        away=AWAY,
    )
