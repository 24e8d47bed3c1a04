"""Marks in a profiler's trace that say what the host does in a step; `hpc_amp.train.trace` reads
them."""

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
    """Puts functions of its own before the step of an engine, the losses of its task and the
    batches of its data, which mark them while a profiler records (`are_on`). Calls `after_step`
    after each step. `remove` takes them away; the iterator of an epoch that has begun keeps its
    own, which does nothing then."""

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
        """As it was: theirs lie in their classes, and ours in the objects."""
        self.are_on = False
        for owner, name, _ in self._placed:
            del vars(owner)[name]

    def begin_step(self) -> None:
        """What follows belongs to a step, which ends after its update; what came since the one
        before belongs to none."""
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
