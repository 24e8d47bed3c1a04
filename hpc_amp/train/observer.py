"""Seeing a training from inside: for curves, files and checks of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_amp.train.engine import Engine


class Observer:
    """Is told of a training as it goes. Override what you need.

    Every rank calls every method after the same steps, so an observer may use collective
    operations; what it writes, rank 0 alone should write (`engine.world.is_main`).
    """

    def begin(self, engine: Engine) -> None:
        """Before the first step of this attempt; a resume has been done (`engine.step`)."""

    def reported(self, engine: Engine, values: Mapping[str, float]) -> None:
        """Every `log_every` steps, with what stands in metrics.jsonl: the losses are means over
        the ranks and over the steps since the last time."""

    def evaluated(self, engine: Engine) -> None:
        """After an evaluation, whose result is in `engine.metrics`."""

    def end(self, engine: Engine) -> None:
        """After the last step of this attempt, before its checkpoint is saved. Not called where an
        error ended it."""
