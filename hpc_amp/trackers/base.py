"""The contract of a tracker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Tracker(ABC):
    """Takes the curves and pictures of one attempt. It is made on rank 0 alone.

    `run_dir` is the run directory. `first_step` is the first step that this attempt may report:
    what an attempt before has reported of it or of a later step is void. An error that a method
    raises is shown as a warning, and the training goes on without the tracker.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        self.run_dir = run_dir
        self.first_step = first_step

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Points of curves, by the names of the curves, such as `train/loss`."""

    def picture(self, step: int, name: str, picture: Tensor) -> None:  # noqa: B027
        """A picture [C, H, W] with values from 0 to 1."""

    def close(self) -> None:  # noqa: B027
        """Write out what has not been written yet. Nothing is reported afterwards."""
