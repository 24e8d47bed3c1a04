"""Copies of the training state in host memory, taken between two steps.

The buffers are allocated once and reused, because page faults in new memory would take several
times as long as the copying. The loop does not wait for the copying either. From a GPU, tensors are
copied to pinned memory, in front of the next step's kernels in the stream. On a CPU, another thread
copies during the next forward and backward pass, which do not change what an optimizer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """Reused buffers for one nested state: dicts, lists and tuples of tensors and other values."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    def reserve(self, state: Any) -> int:
        """Allocate the buffers for `state`. Reads no values, so another thread may change them
        meanwhile. Returns the size of all tensors in bytes."""
        sizes: list[int] = []

        def measure(where: tuple[Any, ...], tensor: Tensor) -> None:
            buffer = self._buffer(where, tensor)
            sizes.append(buffer.numel() * buffer.element_size())

        _walk(state, measure)
        return sum(sizes)

    @torch.no_grad()
    def take(self, state: Any, changing: Iterable[Tensor] = ()) -> tuple[Any, Callable[[], None]]:
        """Copy `state`. Returns the copy and a function that completes it.

        The copy is `state` with a buffer in place of each tensor, valid until the next call. The
        function may run in another thread, and must have returned before an optimizer's next step.
        `changing` are tensors that a forward pass may change; these are copied at once.
        """
        at_once = {tensor.data_ptr() for tensor in changing}
        later: list[tuple[Tensor, Tensor]] = []
        devices: set[torch.device] = set()

        def copy(where: tuple[Any, ...], tensor: Tensor) -> Tensor:
            buffer = self._buffer(where, tensor)
            if tensor.device.type == "cuda":
                devices.add(tensor.device)
            elif tensor.data_ptr() not in at_once:
                later.append((buffer, tensor))
                return buffer
            return buffer.copy_(tensor, non_blocking=True)

        copied = _walk(state, copy)
        events = []
        for device in devices:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            events.append(event)

        def complete() -> None:
            with torch.no_grad():
                for buffer, tensor in later:
                    buffer.copy_(tensor)
            for event in events:
                event.synchronize()

        return copied, complete

    def _buffer(self, where: tuple[Any, ...], tensor: Tensor) -> Tensor:
        """The buffer for a tensor, of the same shape, type and memory order."""
        buffer = self._buffers.get(where)
        if (
            buffer is None
            or buffer.shape != tensor.shape
            or buffer.dtype != tensor.dtype
            or buffer.stride() != tensor.stride()
        ):
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
            # Written once, so that its pages exist before the loop waits for a copy.
            self._buffers[where] = buffer.zero_()
        return buffer


def _walk(
    state: Any, visit: Callable[[tuple[Any, ...], Tensor], Any], where: tuple[Any, ...] = ()
) -> Any:
    """The same nesting, with `visit(path, tensor)` in place of each tensor."""
    if isinstance(state, Tensor):
        return visit(where, state.detach())
    if isinstance(state, dict):
        return {key: _walk(value, visit, (*where, key)) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        parts = [_walk(value, visit, (*where, at)) for at, value in enumerate(state)]
        return parts if isinstance(state, list) else tuple(parts)
    return state
