"""Starts the ranks of a single node as child processes.

torchrun imports torch before it starts the ranks, and they import it once more. This module needs
the standard library only, so the ranks start at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from hpc_amp.distributed.ending import PARENT
from hpc_amp.distributed.supervise import EXIT_CHECKPOINTED, FORWARDED

_GRACE = 30
"""Seconds between SIGTERM and SIGKILL for the other ranks of one that failed."""

_SAME = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}
"""Variables of torchrun that are the same for all ranks. Frameworks see by them that the ranks are
started already, and start none."""


def run_ranks(number: int, command: list[str]) -> int:
    """Run a command as each of `number` ranks, and wait for them. They have the variables of a rank
    of torchrun, without those of its store and its error files.

    Signals are forwarded to the ranks. If a rank fails, the others get SIGTERM, and SIGKILL 30 s
    later. Returns the exit status of the first rank that failed, or 128 and the number of the
    signal that ended it. Without a failure, it is 75 if a rank stopped at a checkpoint, else 0.
    If a rank cannot be started, those before it are killed, and the exit status is 2.
    """
    ranks: dict[int, int] = {}
    """The process ids of the ranks that run, with their ranks."""

    def forward(received: int, frame: FrameType | None) -> None:
        _send(os.kill, ranks, received)

    # A signal that comes during the start is forwarded when all ranks are there.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    for one in FORWARDED:
        if signal.getsignal(one) is not signal.SIG_IGN:  # such as SIGHUP by nohup
            signal.signal(one, forward)
    signal.signal(signal.SIGALRM, lambda received, frame: _send(os.killpg, ranks, signal.SIGKILL))
    failed = 0
    try:
        for rank in range(number):
            # A group of its own: a signal to this process's group reaches it by `forward` only.
            process = os.posix_spawn(
                command[0], command, _environment(rank, number), setpgroup=0, setsigmask=()
            )
            ranks[process] = rank
    except OSError as error:  # such as a limit on the number of processes
        _say(f"rank {len(ranks)} cannot be started: {error}")
        failed = 2
        _send(os.killpg, ranks, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    return _wait(ranks, failed)


def _environment(rank: int, number: int) -> dict[str, str]:
    own: dict[str, int] = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), number),
        PARENT: os.getpid(),
    }
    return {**os.environ, **_SAME, **{name: str(value) for name, value in own.items()}}


def _wait(ranks: dict[int, int], failed: int) -> int:
    """Wait until all ranks have ended; end the others when one fails. Returns the exit status.
    `failed`: that of an earlier failure, or 0."""
    stopped = 0
    while ranks:
        process, waited = os.wait()
        rank = ranks.pop(process, None)
        if rank is None:
            continue  # as process 1 of a container, this one gets the orphans
        status = os.waitstatus_to_exitcode(waited)
        if status == EXIT_CHECKPOINTED:
            stopped = status
        elif status != 0 and not failed:
            failed = status if status > 0 else 128 - status
            _say(f"rank {rank} ended with {_how(status)}")
            _send(os.kill, ranks, signal.SIGTERM)
            signal.alarm(_GRACE)
    return failed or stopped


def _how(status: int) -> str:
    """An exit status in words. A negative one is that of a process which a signal has ended."""
    if status > 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time signal, most of which have no name
        return f"signal {-status}"


def _send(send: Callable[[int, int], None], ranks: dict[int, int], number: int) -> None:
    """Send a signal to all ranks that run."""
    for process in list(ranks):
        with contextlib.suppress(ProcessLookupError):
            send(process, number)


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # the log may be on a full disk
        print(f"hpc-amp: {message}", file=sys.stderr, flush=True)
