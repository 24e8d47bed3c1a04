"""The base class of trackers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Tracker(ABC):
    """Receives the curves and pictures of one attempt, on rank 0.

    `run_dir`: the run directory.
    `first_step`: the first step that this attempt may report. What an earlier attempt has reported
    of this step or later ones is not valid any more.

    If a method raises an error, the log shows a warning, and training goes on without the tracker.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        self.run_dir = run_dir
        self.first_step = first_step

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Report points of curves at `step`, by the names of the curves, such as `train/loss`."""

    def picture(self, step: int, name: str, picture: Tensor) -> None:  # noqa: B027
        """Report a picture [C, H, W] with values from 0 to 1."""

    def close(self) -> None:  # noqa: B027
        """Write what has not been written yet. Nothing is reported afterwards."""
