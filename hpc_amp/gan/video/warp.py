"""Optical flow: warping by it, composing it, where it leads out of the image, and what it is
estimated from.

A flow [B, 2, H, W] is a backward flow in pixels: the point that is at (x, y) in a frame was at
(x + flow[0], y + flow[1]) in the frame before it. All computations here are fp32, also under
autocast and with networks in half precision: a coordinate of 2049 pixels does not fit into fp16,
and at 100 pixels fp16 knows positions to 1/16 of a pixel, bf16 to half a pixel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def warp(images: Tensor, flow: Tensor) -> Tensor:
    """The frame before, moved to where its points are now: float32 [B, C, H, W].

    `images` [B, C, H, W] are sampled bilinearly at each pixel plus `flow`; beyond the border is the
    pixel at the border. Up to rounding, a flow of 0 gives the images themselves, and one of whole
    pixels moves them without blur.
    """
    return sample(images, *_positions(flow.float()))


def sample(images: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """The images [B, C, H, W] at places in pixels, sampled bilinearly: `columns` and `rows`
    [B, h, w] to float32 [B, C, h, w]. Beyond the border is the pixel at the border."""
    with torch.autocast(images.device.type, enabled=False):
        images, columns, rows = images.float(), columns.float(), rows.float()
        if images.is_cuda and torch.are_deterministic_algorithms_enabled():
            # The backward pass of grid_sample is not deterministic on GPUs, and is refused.
            return gather_bilinear(images, columns, rows)
        height, width = images.shape[2:]
        # With align_corners, -1 and 1 are the middles of the first and of the last pixel.
        grid = torch.stack(
            (columns * (2 / max(width - 1, 1)) - 1, rows * (2 / max(height - 1, 1)) - 1), 3
        )
        if not grid.is_cuda:
            # The backward pass of grid_sample ends the process where a place is NaN.
            grid = grid.nan_to_num()
        sampled: Tensor = F.grid_sample(
            images, grid, mode="bilinear", padding_mode="border", align_corners=True
        )
        return sampled


def gather_bilinear(images: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """`sample` by four lookups for each place, whose gradients are deterministic on GPUs, too."""
    height, width = images.shape[2:]
    columns, rows = columns.clamp(0, width - 1), rows.clamp(0, height - 1)
    left, top = columns.detach().floor(), rows.detach().floor()
    right_share, down_share = (columns - left)[:, None], (rows - top)[:, None]
    flat = images.flatten(2)

    def at(down: int, right: int) -> Tensor:
        # NaN, as a whole number, would be a place outside. The shares hand it on.
        place = (top.long() + down).clamp(0, height - 1) * width
        place = place + (left.long() + right).clamp(0, width - 1)
        index = place.flatten(1)[:, None].expand(-1, flat.shape[1], -1)
        return flat.gather(2, index).view(*flat.shape[:2], *columns.shape[1:])

    above = at(0, 0) * (1 - right_share) + at(0, 1) * right_share
    below = at(1, 0) * (1 - right_share) + at(1, 1) * right_share
    return above * (1 - down_share) + below * down_share


def compose(flow: Tensor, before: Tensor) -> Tensor:
    """The flow over two frames, of `flow` to the frame before and of the flow `before` that this
    frame has: float32 [B, 2, H, W]."""
    return flow.float() + warp(before, flow)


def correlation(now: Tensor, before: Tensor, radius: int) -> Tensor:
    """How well each pixel of `now` fits the pixels around its place in `before`, [B, C, H, W] both:
    [B, (2 radius + 1)^2, H, W] in the type of `now`, the sums over channels of the products, less
    their mean over all places.

    The first channel is for the flow (-radius, -radius), the next ones go from left to right, then
    down. Of one-hot label maps, a product is 1 where the labels are equal. Beyond the border is 0.
    """
    with torch.autocast(now.device.type, enabled=False):
        height, width = now.shape[2:]
        wide = F.pad(before.float(), (radius,) * 4)
        wanted, side = now.float(), range(2 * radius + 1)
        products = [
            (wanted * wide[:, :, down : down + height, right : right + width]).sum(1)
            for down in side
            for right in side
        ]
        found = torch.stack(products, 1)
        return (found - found.mean(1, keepdim=True)).to(now.dtype)


def inside(flow: Tensor) -> Tensor:
    """Where a flow [B, 2, H, W] leads to a place within the image: bool [B, H, W]."""
    height, width = flow.shape[2:]
    columns, rows = _positions(flow.float())
    return (columns >= 0) & (columns <= width - 1) & (rows >= 0) & (rows <= height - 1)


def _positions(flow: Tensor) -> tuple[Tensor, Tensor]:
    """Where the points of all pixels were: columns and rows [B, H, W]."""
    height, width = flow.shape[2:]
    columns = torch.arange(width, device=flow.device, dtype=flow.dtype) + flow[:, 0]
    rows = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None] + flow[:, 1]
    return columns, rows
