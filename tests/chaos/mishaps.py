"""What goes wrong in a rank, and where.

A mishap is {rank, where, at, what, value}: on that rank (None: on all), `what` happens when the
`at`-th (None: every) event of the kind `where` is over. Events are steps, evaluation batches, and
checkpoints whose files are written but not yet published; steps and checkpoints count as steps do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hpc_amp.train.agreement import Agreement
from hpc_amp.train.checkpoint import CheckpointStore
from hpc_amp.train.engine import Engine


class Upset(Exception):
    """An error in a user's task."""


def arrange(mishap: dict[str, Any]) -> None:
    """Let it happen when its time comes."""
    act, value, at = ACTS[mishap["what"]], mishap.get("value"), mishap.get("at")

    def after(event: int) -> None:
        if at in (event, None):
            act(value)

    PLACES[mishap["where"]](after)


def _after_steps(after: Callable[[int], None]) -> None:
    step = Engine.train_step

    def train_step(self: Engine, batches: list[Any]) -> None:
        step(self, batches)
        after(self.step)

    Engine.train_step = train_step  # type: ignore[method-assign]


def _after_evaluation_batches(after: Callable[[int], None]) -> None:
    sums = Engine._evaluation_sums

    def evaluation_sums(self: Engine, networks: Any) -> Any:
        evaluate, count = self.task.evaluate, 0

        def counted(batch: Any, networks: Any) -> Any:
            nonlocal count
            seen = evaluate(batch, networks)
            count += 1
            after(count)
            return seen

        self.task.evaluate = counted  # type: ignore[method-assign]
        try:
            return sums(self, networks)
        finally:
            del self.task.evaluate

    Engine._evaluation_sums = evaluation_sums  # type: ignore[method-assign]


def _after_files_of_checkpoints(after: Callable[[int], None]) -> None:
    write = CheckpointStore._write

    def written(self: CheckpointStore, stage: Any, checkpoint: Any) -> None:
        write(self, stage, checkpoint)
        after(checkpoint.step)

    CheckpointStore._write = written  # type: ignore[method-assign]


def _at_start(after: Callable[[int], None]) -> None:
    after(0)


def _signal(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def _raise(text: str) -> None:
    raise Upset(text)


def _refuse(value: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _hold_the_lock(value: Any) -> None:
    """Keep Python's global lock, as a defect of an extension would: in a call that never ends."""
    library = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # all zeros: one that is free
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # which the same thread waits for, whatever signal comes


def _receive_what_nobody_sends(value: Any) -> None:
    dist.recv(torch.zeros(1), src=0)


def _become(user: int) -> None:
    os.seteuid(user)


def _exchange_always(value: Any) -> None:
    Agreement.due = lambda self, step: True  # type: ignore[method-assign]


def _tell_of_forks(value: Any) -> None:
    """Say when a process is forked, and beside how many threads. A program is not a fork."""

    def tell() -> None:
        print(f"a fork beside {len(os.listdir('/proc/self/task')) - 1} threads", flush=True)

    os.register_at_fork(before=tell)


PLACES: dict[str, Callable[[Callable[[int], None]], None]] = {
    "step": _after_steps,
    "evaluation": _after_evaluation_batches,
    "writing": _after_files_of_checkpoints,
    "start": _at_start,
}
ACTS: dict[str, Callable[[Any], None]] = {
    "signal": _signal,
    "raise": _raise,
    "refuse": _refuse,
    "sleep": time.sleep,
    "hold": _hold_the_lock,
    "receive": _receive_what_nobody_sends,
    "become": _become,
    "exchange": _exchange_always,
    "forks": _tell_of_forks,
}
