"""Marks in the trace of torch's profiler that show what the host does in a step. They are read by
`hpc_amp.train.trace`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.profiler import record_function

from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.train.observer import Training

STEP, DATA, UPDATE, FORWARD = (f"hpc_amp::{name}" for name in ("step", "data", "update", "forward"))
_END = object()
T = TypeVar("T")


class Marks:
    """Replaces three methods of an engine, its task and its data by ones that mark their work in
    the trace while a profiler records (`are_on`).

    `after_step` is called after each step. `remove` restores the methods. The iterator of an epoch
    that has begun keeps the marks, which then do nothing.
    """

    def __init__(self, engine: Training, after_step: Callable[[], None]) -> None:
        self.are_on = False
        self._after_step = after_step
        self._step: Any = None
        self._update = engine.train_step
        self._epoch = engine.data.epoch
        self._losses = engine.task.losses
        self._placed: tuple[tuple[object, str, Callable[..., Any]], ...] = (
            (engine, "train_step", self._marked_update),
            (engine.data, "epoch", self._marked_epoch),
            (engine.task, "losses", self._marked_losses),
        )
        for owner, name, own in self._placed:
            vars(owner)[name] = own

    def remove(self) -> None:
        """Restore the methods. The originals belong to the classes, the marked ones to objects."""
        self.are_on = False
        for owner, name, _ in self._placed:
            del vars(owner)[name]

    def begin_step(self) -> None:
        """Begin a step in the trace; it ends after its update. What happened since the previous
        step belongs to no step."""
        self._end_step()
        if self.are_on:
            self._step = record_function(STEP)
            self._step.__enter__()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _marked_update(self, micro_batches: list[Any]) -> None:
        with self._mark(UPDATE):
            self._update(micro_batches)
        self._end_step()
        self._after_step()

    def _marked_epoch(self, epoch: int, start: int = 0) -> Iterator[list[Any]]:
        return self._marked(DATA, self._epoch(epoch, start))

    def _marked_losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        return self._marked(FORWARD, self._losses(phase, batch, networks))

    def _marked(self, name: str, items: Iterator[T]) -> Iterator[T]:
        while True:
            with self._mark(name):
                item: Any = next(items, _END)
            if item is _END:
                return
            yield item

    def _mark(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return record_function(name) if self.are_on else contextlib.nullcontext()
