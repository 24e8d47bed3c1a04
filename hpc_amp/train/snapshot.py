"""Copies of the training state in host memory, taken between two steps.

The buffers are allocated once and reused, because page faults in new memory would take several
times as long as the copying. The loop does not wait for the copying either. From a GPU, tensors are
copied to pinned memory, in front of the next step's kernels in the stream. On a CPU, another thread
copies during the next forward and backward pass, which do not change what an optimizer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from hpc_amp.amp.master_weights import copy_each


class Snapshot:
    """Reused buffers for one nested state: dicts, lists and tuples of tensors and other values."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        """In the order of the tensors in the state."""

    def reserve(self, state: Any) -> int:
        """Allocate the buffers for `state`. Reads no values, so another thread may change them
        meanwhile. Returns the size of all tensors in bytes."""
        tensors: list[Tensor] = []
        _collect(state, tensors)
        buffers = [self._buffer(place, tensor) for place, tensor in enumerate(tensors)]
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers)

    @torch.no_grad()
    def take(self, state: Any, changing: Iterable[Tensor] = ()) -> tuple[Any, Callable[[], None]]:
        """Copy `state`. Returns the copy and a function that completes it.

        The copy is `state` with a buffer in place of each tensor, valid until the next call. The
        function may run in another thread, and must have returned before an optimizer's next step.
        `changing` are tensors that a forward pass may change; these are copied at once.
        """
        tensors: list[Tensor] = []
        _collect(state, tensors)
        buffers = [self._buffer(place, tensor) for place, tensor in enumerate(tensors)]
        first = {tensor.data_ptr() for tensor in changing}
        now: tuple[list[Tensor], list[Tensor]] = ([], [])
        later: tuple[list[Tensor], list[Tensor]] = ([], [])
        devices: set[torch.device] = set()
        for place, (buffer, tensor) in enumerate(zip(buffers, tensors, strict=True)):
            if tensor.is_sparse:  # the momentum of sparse gradients
                buffers[place] = tensor.to("cpu", copy=True)
                continue
            if tensor.is_cuda:
                devices.add(tensor.device)
                buffer.copy_(tensor, non_blocking=True)
                continue
            targets, sources = now if tensor.data_ptr() in first else later
            targets.append(buffer)
            sources.append(tensor)
        copy_each(*now)
        events = []
        for device in devices:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            events.append(event)

        def complete() -> None:
            with torch.no_grad():
                copy_each(*later)
            for event in events:
                event.synchronize()

        return _replaced(state, iter(buffers)), complete

    def _buffer(self, place: int, tensor: Tensor) -> Tensor:
        """The buffer of the tensor at `place`, of the same shape, type and memory order. Empty for
        a sparse one, whose size changes."""
        if tensor.is_sparse:
            tensor = torch.empty(0)
        if place < len(self._buffers):
            buffer = self._buffers[place]
            if (
                buffer.shape == tensor.shape
                and buffer.dtype == tensor.dtype
                and buffer.stride() == tensor.stride()
            ):
                return buffer
        new = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, requires_grad=False)
        # Written once, so that its pages exist before the loop waits for a copy.
        new.zero_()
        self._buffers[place : place + 1] = [new]
        return new


def _collect(state: Any, tensors: list[Tensor]) -> None:
    """Add the tensors in a nested state to `tensors`, in order."""
    if isinstance(state, Tensor):
        tensors.append(state)
    elif isinstance(state, dict):
        for value in state.values():
            _collect(value, tensors)
    elif isinstance(state, (list, tuple)):
        for value in state:
            _collect(value, tensors)


def _replaced(state: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nesting, with the next one of `tensors` in place of each tensor."""
    if isinstance(state, Tensor):
        return next(tensors)
    if isinstance(state, dict):
        return {key: _replaced(value, tensors) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        parts = [_replaced(value, tensors) for value in state]
        return parts if isinstance(state, list) else tuple(parts)
    return state
