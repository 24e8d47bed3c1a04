"""The base class of trackers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Tracker(ABC):
    """Receives the curves and pictures of one attempt, on rank 0.

    `run_dir`: the run directory.
    `first_step`: the first step that this attempt may report. What an earlier attempt has reported
    of this step or later ones is not valid any more.

    The methods are called by a thread that serves this tracker alone, so training does not wait for
    them. If a method raises an error, the log shows a warning, and training goes on without the
    tracker; after an OSError, it goes on with the tracker.
    """

    where: str = ""
    """Where the curves can be seen, in words for the log. Set by the constructor, if at all."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        self.run_dir = run_dir
        self.first_step = first_step

    def configuration(self, config: Mapping[str, Any]) -> None:  # noqa: B027
        """Report the settings of the run (see `hpc_amp.trackers.run.configuration`). Called once,
        before anything else is reported."""

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Report points of curves at `step`, by the names of the curves, such as `train/loss`."""

    def report(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Report points of curves that were measured at `time`, in seconds since 1970. By default,
        calls `scalars`."""
        self.scalars(step, values)

    def picture(self, step: int, name: str, picture: Tensor) -> None:  # noqa: B027
        """Report a picture [C, H, W] with values from 0 to 1."""

    def animation(self, step: int, name: str, gif: bytes) -> None:  # noqa: B027
        """Report a moving picture, the content of a GIF file."""

    def end(self, outcome: str) -> None:  # noqa: B027
        """The attempt has ended: `finished`, `checkpointed`, which another attempt may resume, or
        `failed`. Not called if the attempt was killed."""

    def close(self) -> None:  # noqa: B027
        """Write what has not been written yet. Nothing is reported afterwards."""
