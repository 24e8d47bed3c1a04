"""Casts of floating-point tensors in nested arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

HALF_TYPES = (torch.float16, torch.bfloat16)


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply `change` to every part of `value` that is not a container, at any depth. Mappings
    become dicts; lists, tuples, named tuples and sets keep their types."""
    if isinstance(value, Mapping):
        return {key: map_leaves(change, item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [map_leaves(change, item) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    return change(value)


def cast_floats(dtype: torch.dtype, value: Any) -> Any:
    """Cast every floating-point tensor in `value` to `dtype`. Objects that have a method `to` cast
    themselves; modules are not changed."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf
        if isinstance(leaf, nn.Module) or not callable(getattr(leaf, "to", None)):
            return leaf
        return leaf.to(dtype)

    return map_leaves(cast, value)
