"""Saves checkpoints while training goes on: the loop copies the state, and a thread writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hpc_amp.train.checkpoint import Checkpoint, CheckpointStore
from hpc_amp.train.snapshot import Snapshot

_FILES_OF_A_CHECKPOINT = 10  # a generous estimate, for the check of free inodes


class CheckpointSaver:
    """Writes checkpoints to a store, at most one at a time. Used by rank 0 alone.

    `background`: write in a thread; otherwise `save` waits until the checkpoint is on the disk.
    `say`: logs a published checkpoint.
    `warn`: reports that the disk refused a checkpoint. Training goes on then. Any other error of
    the writing thread is raised by the next `poll`, `save` or `finish`.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        background: bool,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.store = store
        self._background = background
        self._say, self._warn = say, warn
        self._snapshot = Snapshot()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copied: Future[None] | None = None
        self._pending: Future[Path] | None = None
        self._step = 0
        self._reserved: Future[None] | None = None
        self.saved_step: int | None = None
        """The step of the newest checkpoint that this process has published."""
        self.seconds = 0.0
        """How long it took to write that checkpoint."""

    def reserve(self, tensors: Mapping[str, Any]) -> None:
        """Allocate the buffers in the background, and warn if the disk has too little room.

        `tensors` is what `save` will get as `checkpoint.tensors`.
        """
        if self._background:
            self._reserved = self._thread.submit(self._prepare, tensors)

    def _prepare(self, tensors: Mapping[str, Any]) -> None:
        size = self._snapshot.reserve(tensors)
        try:
            there = len(self.store.steps())
        except OSError:
            return  # the first checkpoint will report the error
        shortage = lack_of_room(self.store.folder, size, self.store.retention.last, there)
        if shortage:
            self._warn(shortage)

    def save(
        self, checkpoint: Checkpoint, own: Mapping[str, Any], changing: Iterable[Tensor] = ()
    ) -> None:
        """Begin to save a checkpoint. First waits for the previous one to be written.

        `checkpoint.tensors`: those in `changing` are copied before `save` returns, the others
        before `settle` returns. `own`: further tensors, which nothing changes.
        """
        self.finish()
        if self.saved_step == checkpoint.step:
            return
        self._step = checkpoint.step
        tensors = dict(checkpoint.tensors)
        if self._background:
            tensors, complete = self._snapshot.take(tensors, changing)
            self._copied = self._thread.submit(complete)
        whole = replace(checkpoint, tensors={**tensors, **own})
        self._pending = self._thread.submit(self._write, whole, self._copied)
        if not self._background:
            self.finish()

    def settle(self) -> None:
        """Wait until the state is copied. Called before an optimizer changes it."""
        copied, self._copied = self._copied, None
        if copied is not None:
            copied.result()

    def _write(self, checkpoint: Checkpoint, copied: Future[None] | None) -> Path:
        if copied is not None:
            copied.result()  # raises an error of the copying, so that nothing is published
        begun = time.monotonic()
        path = self.store.save(checkpoint)
        self.seconds = time.monotonic() - begun
        return path

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._pending is not None and not self._pending.done()

    def poll(self) -> None:
        """Report a checkpoint that has been written since the last call. Does not wait."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait until no checkpoint is being written, and report the last one."""
        self.settle()
        if self._reserved is not None:
            self._reserved.result()
            self._reserved = None
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            path = pending.result()
        except OSError as error:
            self._warn(
                f"no checkpoint of step {self._step}: {error}; training goes on, and the next "
                "interval tries again"
            )
        else:
            self.saved_step = self._step
            self._say(f"checkpoint {path}")


def lack_of_room(folder: Path, size: int, count: int, there: int = 0) -> str | None:
    """Describe the lack of room on a disk, or return None if there is enough.

    `size` is that of a checkpoint in bytes, `count` how many are kept, `there` how many exist. One
    more has to fit, since a new checkpoint is published before an old one is removed. Quotas cannot
    be seen here.
    """
    try:
        while not folder.exists():
            folder = folder.parent
        disk = os.statvfs(folder)
    except OSError:
        return None  # the first checkpoint will report the error
    coming = max(0, count - there) + 1
    free, needed = disk.f_bavail * disk.f_frsize, size * coming
    if free < needed:
        return (
            f"checkpoints of {_mebibytes(size)} each, {count} kept and one being written, need "
            f"{_mebibytes(needed)} more, but {folder} has {_mebibytes(free)} left"
        )
    # File systems without a fixed number of inodes report 0.
    if disk.f_files and disk.f_favail < _FILES_OF_A_CHECKPOINT * coming:
        return f"{folder} has only {disk.f_favail} inodes left: checkpoints may not fit"
    return None


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
