"""Finds where the host would wait for a GPU. Works on a CPU, where a GPU's waits cost nothing."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.environment import REPOSITORY

_OPERATORS = (
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave.Tensor",
)
"""Operators whose result or its size depends on values that the host has to read."""
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_")
"""These wait if an index is a mask."""
_READING = (Tensor.tolist, Tensor.numpy, Tensor.cpu)
"""Functions that read values and call no operator if the tensor is on the CPU already."""
_MAKING = (torch.tensor, torch.as_tensor)
"""Functions that copy values of the host to the device that they are given."""


@contextlib.contextmanager
def waits(on_host: Iterable[Tensor] = ()) -> Iterator[list[str]]:
    """The places in which the host would wait in this block: what was called, and the line of
    ours that called it. `on_host`: tensors that would be on the host with a GPU, too."""
    found: list[str] = []
    with _Functions(found, {id(tensor) for tensor in on_host}), _Operators(found):
        yield found


class _Operators(TorchDispatchMode):
    """Operators, also those of backward passes and in functions of torch."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        overload = f"{name}.{func._schema.overload_name}"
        chosen_by_values = name in _INDEXING and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        if chosen_by_values or name in _OPERATORS or overload in _OPERATORS:
            self._found.append(f"{name} in {_caller()}")
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Functions that read or copy."""

    def __init__(self, found: list[str], on_host: set[int]) -> None:
        super().__init__()
        self._found, self._on_host = found, on_host

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        reads = func in _READING and id(args[0]) not in self._on_host
        if reads or (func in _MAKING and given.get("device") is not None):
            self._found.append(f"{func.__name__} in {_caller()}")
        return func(*args, **given)


def _caller() -> str:
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(str(REPOSITORY / "hpc_amp")):
            name = frame.filename.removeprefix(f"{REPOSITORY}/")
            return f"{name}, line {frame.lineno}: {frame.line}"
    return "torch"
