"""Flows as files, estimated from frames, and as a sample shows them.

A file is in the format of the Middlebury benchmark (.flo): the number 202021.25, width and height
as int32, then for each pixel the flow in x and y as float32, all little-endian. A component beyond
1e9 means that the flow of a pixel is not known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from hpc_amp.data.decode import to_pixels
from hpc_amp.data.errors import DataError
from hpc_amp.files import replacing
from hpc_amp.gan.data.reading import ImageSource, View

FlowSource = Callable[[int], tuple[Tensor, Tensor]]
"""By the number of a frame that has one before it: the flow float32 [2, H, W] to that frame, in
pixels, and where it is known, bool [H, W]."""
Estimate = Callable[[Tensor, Tensor], Tensor]
"""From a frame and the one before it, uint8 [3, H, W], to the flow float32 [2, H, W]."""
_MARK = torch.tensor(202021.25)
_UNKNOWN = 1e9


def read_flow(path: str) -> tuple[Tensor, Tensor]:
    """The flow float32 [2, H, W] in a file, and where it is known, bool [H, W]. Raises
    DataError."""
    try:
        content = bytearray(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"the flow {path} cannot be read: {error}") from error
    header = torch.frombuffer(content, dtype=torch.int32, count=3) if len(content) >= 12 else None
    if header is None or header[:1].view(torch.float32) != _MARK:
        raise DataError(f"{path} is not a flow in Middlebury's format (.flo)")
    width, height = header[1:].tolist()
    if width < 1 or height < 1 or len(content) != 12 + 8 * width * height:
        raise DataError(
            f"{path} has {len(content)} bytes, which does not fit a flow of {width} x {height} "
            "pixels"
        )
    values = torch.frombuffer(content, dtype=torch.float32, offset=12)
    flow = values.view(height, width, 2).permute(2, 0, 1).contiguous()
    known = (flow.abs() < _UNKNOWN).all(0)  # False for NaN
    return torch.where(known, flow, 0.0), known


def write_flow(path: Path, flow: Tensor, known: Tensor) -> None:
    """Write a flow [2, H, W] to a file."""
    height, width = known.shape
    header = torch.cat((_MARK[None].view(torch.int32), torch.tensor([width, height]).int()))
    values = torch.where(known, flow.float(), 10 * _UNKNOWN).permute(1, 2, 0).contiguous()
    with replacing(path) as new:
        new.write_bytes(header.numpy().tobytes() + values.numpy().tobytes())


def estimated_flows(frames: ImageSource, source: str) -> FlowSource:
    """The flows between frames that `source`, as in `VideoData.flow`, estimates when they are asked
    for. They are known where the flow back leads to about the same pixel (Sundaram et al., 2010).
    Raises DataError where there is no such source."""
    estimate = _open_cv() if source == "dis" else _function(source)

    def flow(number: int) -> tuple[Tensor, Tensor]:
        now, before = (to_pixels(frames.open(place)) for place in (number, number - 1))
        try:
            there, back = estimate(now, before), estimate(before, now)
        except DataError as error:
            raise DataError(f"the flow of {frames.name(number)}: {error}") from None
        return there, _leads_back(there, back)

    return flow


def _leads_back(flow: Tensor, back: Tensor) -> Tensor:
    """Where the flow `back` [2, H, W], at the pixel to which `flow` leads, is about its reverse:
    bool [H, W]."""
    height, width = flow.shape[1:]
    columns = (torch.arange(width) + flow[0]).round().clamp(0, width - 1).long()
    rows = (torch.arange(height)[:, None] + flow[1]).round().clamp(0, height - 1).long()
    back = back[:, rows, columns]
    lengths = flow.square().sum(0) + back.square().sum(0)
    return (flow + back).square().sum(0) < 0.01 * lengths + 0.5


def _open_cv() -> Estimate:
    """Dense inverse search (Kroeger et al., 2016)."""
    try:
        import cv2
    except ImportError as error:
        raise DataError(
            f"images.flow: dis needs OpenCV ({error}): pip install 'hpc-amp[flow]', or set "
            "flow: none"
        ) from None
    # Results depend on the number of threads; those that read samples work side by side.
    cv2.setNumThreads(1)

    def estimate(now: Tensor, before: Tensor) -> Tensor:
        search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        first, second = (
            cv2.cvtColor(frame.permute(1, 2, 0).contiguous().numpy(), cv2.COLOR_RGB2GRAY)
            for frame in (now, before)
        )
        try:
            flow = search.calc(first, second, None)
        except cv2.error as error:
            raise DataError(f"OpenCV cannot estimate it: {error.err}") from None
        return torch.from_numpy(flow).permute(2, 0, 1).contiguous()

    return estimate


def _function(place: str) -> Estimate:
    """A function of the user, `package.module:function`."""
    module, _, name = place.partition(":")
    try:
        found: Estimate = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DataError(f"images.flow: {place} cannot be imported: {error}") from error

    def estimate(now: Tensor, before: Tensor) -> Tensor:
        with torch.no_grad():
            flow = found(now, before)
        if not isinstance(flow, Tensor) or flow.shape != (2, *now.shape[1:]):
            what = tuple(flow.shape) if isinstance(flow, Tensor) else type(flow).__name__
            raise DataError(f"{place} returns {what} instead of a tensor {(2, *now.shape[1:])}")
        return flow.float().cpu()

    return estimate


def show_flow(flow: Tensor, known: Tensor, view: View) -> tuple[Tensor, Tensor]:
    """The part of a flow that `view` shows, in pixels of the view; each pixel is the nearest one.
    A mirrored view has mirrored flows."""
    height, width = known.shape
    box = view.box(width, height)
    if (view.width, view.height) != (width, height) or box != (0, 0, width, height):
        planes = [_resize(plane, view) for plane in (*flow, known.float())]
        across, along = view.width / (box[2] - box[0]), view.height / (box[3] - box[1])
        flow = torch.stack((planes[0] * across, planes[1] * along))
        known = planes[2] > 0.5
    if view.mirror:
        flow = flow.flip(2) * torch.tensor([-1.0, 1.0])[:, None, None]
        known = known.flip(1)
    return flow, known


def _resize(plane: Tensor, view: View) -> Tensor:
    height, width = plane.shape
    image = Image.fromarray(plane.contiguous().numpy())
    shown = image.resize(
        (view.width, view.height), Image.Resampling.NEAREST, box=view.box(width, height)
    )
    values = torch.frombuffer(bytearray(shown.tobytes()), dtype=torch.float32)
    return values.view(view.height, view.width)
