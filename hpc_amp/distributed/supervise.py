"""Runs a user's own program as a rank, with 75 as an allowed exit status.

Every launcher treats a status other than 0 as a crash, and kills the ranks that are still saving.
So a rank that stops at a checkpoint reports 0 to the launcher, and rank 0 creates a file for the
launch script. Any other exit status and any signal reach the launcher unchanged.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

EXIT_CHECKPOINTED = 75
_FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


def supervise(
    command: list[str],
    environment: Mapping[str, str],
    mark: Path | None,
    prepare: Callable[[], None],
) -> int:
    """Run a command, forward signals to it, and return the exit status for the launcher. If a
    signal ends the command, this process ends by the same signal.

    `mark`: a file to create if the status is 75. If that fails, the status is returned as it is.
    `prepare`: runs in the child before the command.

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
    child = subprocess.Popen(command, env=environment, preexec_fn=become_the_command)
    for received in early:
        child.send_signal(received)
    status = child.wait()
    if status < 0:
        _end_by(signal.Signals(-status))
    if status != EXIT_CHECKPOINTED:
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
