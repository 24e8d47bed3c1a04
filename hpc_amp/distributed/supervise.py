"""Runs a rank's program as a child process, to label its output and to understand its exit status.

Every launcher treats a status other than 0 as a crash, and kills the ranks that are still saving.
So a user's own program that stops at a checkpoint, with status 75, reports 0 to the launcher, and
rank 0 creates a file for the launch script. Any other exit status and any signal reach the launcher
unchanged.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from hpc_amp.distributed.labels import LabelledOutput

EXIT_CHECKPOINTED = 75
_FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


def supervise(
    command: list[str],
    environment: Mapping[str, str],
    prepare: Callable[[], None],
    *,
    may_stop: bool = False,
    mark: Path | None = None,
    output: LabelledOutput | None = None,
) -> int:
    """Run a command, forward signals to it, and return the exit status for the launcher. If a
    signal ends the command, this process ends by the same signal.

    `prepare`: runs in the child before the command.
    `may_stop`: whether a status of 75 means that the program stopped at a checkpoint.
    `mark`: a file to create then. If that fails, the status is returned as it is.
    `output`: labels the output. By default the command has the output of this process.

    Raises OSError if the command cannot be run.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)

    def become_the_command() -> None:
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        prepare()

    # Running Python code after a fork is only safe because this process has no other threads.
    # Files that a launcher has opened for the rank stay open: MPICH's PMI is one.
    child = subprocess.Popen(
        command,
        env=environment,
        preexec_fn=become_the_command,
        close_fds=False,
        stdout=output.stdout if output is not None else None,
        stderr=output.stderr if output is not None else None,
    )
    for received in early:
        child.send_signal(received)
    if output is not None:
        output.copy(child)
    status = child.wait()
    if status < 0:
        _end_by(signal.Signals(-status))
    if not may_stop or status != EXIT_CHECKPOINTED:
        return status
    try:
        if mark is not None:
            mark.touch()
    except OSError:  # the script understands the status as well, unless the launcher hides it
        return status
    return 0


def _end_by(number: signal.Signals) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already dumped its core
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
