"""vid2vid as a task."""

from __future__ import annotations

from hpc_amp.gan.video.task import VideoGan
from hpc_amp.tasks.vid2vid.config import Vid2vidConfig


class Vid2vid(VideoGan):
    """A generator of sequences, against a discriminator of frames and one of how frames follow each
    other."""

    train: Vid2vidConfig
