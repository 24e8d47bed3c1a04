"""Video files (.mp4), written frame by frame with PyAV."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from hpc_amp.errors import InputError
from hpc_amp.files import replacing

_BT709, _LIMITED_RANGE = 1, 1
"""Numbers in the header of a video that say how its colours are meant."""


def check_video_package() -> None:
    """Raise InputError where PyAV is not installed."""
    if importlib.util.find_spec("av") is None:
        raise InputError(
            "a video needs PyAV, and this Python has none", hint="pip install 'hpc-amp[video]'"
        )


@contextlib.contextmanager
def video_file(path: Path, fps: int) -> Iterator[Callable[[Tensor], None]]:
    """Yield what adds a frame, uint8 [H, W, 3] with even sides, to the new video `path`.

    Frames are encoded when they are added, so a video of any length needs the memory of some
    frames. Equal frames give equal bytes, with equal versions of PyAV. The file is there when the
    block ends, and not where it fails.
    """
    import av

    # What PyAV brings along has x264. A PyAV that was built without it has MPEG-4's first codec.
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with replacing(path) as new, av.open(str(new), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=fps)
        settings = stream.codec_context
        stream.pix_fmt, settings.thread_count = "yuv420p", 1
        settings.colorspace = settings.color_primaries = settings.color_trc = _BT709
        settings.color_range = _LIMITED_RANGE

        def add(pixels: Tensor) -> None:
            if not settings.is_open:
                stream.height, stream.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(pixels.contiguous().numpy(), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace="ITU709")))

        yield add
        container.mux(stream.encode())
