"""Running a user's own program as a rank, so that 75 may be its exit status.

Every launcher takes a status other than 0 for a crash and kills the ranks that are still saving.
So a rank that stops at a checkpoint ends with 0 towards the launcher, and rank 0 leaves a mark for
the launch script. Anything else that the program does reaches the launcher as it is.
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
    """Run a command and return the exit status for the launcher; where a signal ended it, this
    process ends in the same way. `mark` is made where the status was 75, which is passed on where
    that fails. `prepare` runs in the child before the command. Raises OSError where the command
    cannot be run.
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

    # A fork in which Python runs is safe here alone: no other thread lives in this process.
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
    except OSError:  # the script understands the status, unless the launcher hides it
        return status
    return 0


def _end_by(number: signal.Signals) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its core
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
