"""Writes the files of TensorBoard, in the folder `tensorboard` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from hpc_amp.trackers.base import Tracker


class TensorBoard(Tracker):
    """Writes event files. TensorBoard drops points that are not valid any more (`purge_step`)."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        super().__init__(run_dir, first_step)
        # At the first step as well: an earlier attempt may have ended before its first checkpoint.
        self._writer = SummaryWriter(
            str(run_dir / "tensorboard"), purge_step=first_step, flush_secs=10
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, step: int, name: str, picture: Tensor) -> None:
        """Write an image."""
        self._writer.add_image(name, picture, step)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
