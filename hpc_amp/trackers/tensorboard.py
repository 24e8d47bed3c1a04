"""Writes the files of TensorBoard, in the folder `tensorboard` of the run."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.metadata import (
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
    create_summary_metadata,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from hpc_amp.trackers.base import Tracker
from hpc_amp.trackers.run import flat


class TensorBoard(Tracker):
    """Writes event files. TensorBoard drops points that are not valid any more (`purge_step`).

    The tab HPARAMS has one entry for a run, with the settings of its first attempt and the newest
    point of each curve. No list of settings and metrics is written for it, because TensorBoard
    would use the list of any one run for all the others: it makes its own of all runs.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        super().__init__(run_dir, first_step)
        # At the first step as well: an earlier attempt may have ended before its first checkpoint.
        self._writer = SummaryWriter(
            str(run_dir / "tensorboard"), purge_step=first_step, flush_secs=10
        )

    def configuration(self, config: Mapping[str, Any]) -> None:
        """Write the settings as a text, and as those of the tab HPARAMS."""
        text = json.dumps(config, indent=1)
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text("configuration", indented, self.first_step)
        start = SessionStartInfo()
        for name, value in flat(config).items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        self._add_session(SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))

    def _add_session(self, tag: str, data: HParamsPluginData) -> None:
        metadata = create_summary_metadata(data)
        summary = Summary(value=[Summary.Value(tag=tag, metadata=metadata)])
        self._writer._get_file_writer().add_summary(summary, self.first_step)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        self._add_points(step, None, values)

    def report(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Write one point of each curve, with its time."""
        self._add_points(step, time, values)

    def _add_points(self, step: int, time: float | None, values: Mapping[str, float]) -> None:
        # In one event: `add_scalar` makes one for each curve, which takes several times as long.
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer._get_file_writer().add_summary(Summary(value=points), step, time)

    def picture(self, step: int, name: str, picture: Tensor) -> None:
        """Write an image."""
        self._writer.add_image(name, picture, step)

    def animation(self, step: int, name: str, gif: bytes) -> None:
        """Write an image that moves: what `add_video` of torch writes, too, if moviepy is there."""
        width, height = struct.unpack_from("<HH", gif, 6)
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self._writer._get_file_writer().add_summary(summary, step)

    def end(self, outcome: str) -> None:
        """Say in the tab HPARAMS that the run is complete."""
        if outcome == "finished":
            end = SessionEndInfo(status=Status.Value("STATUS_SUCCESS"))
            self._add_session(SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
