"""The rules of apex's O1 that torch.autocast does not carry out itself.

A function computes in half precision, in fp32, or in the widest type of its arguments. On a GPU,
autocast lacks a few of the rules, on a CPU most of them. Sources: the documentation of apex.amp 1.0
(https://nvidia.github.io/apex/amp.html) and of torch.autocast
(https://pytorch.org/docs/stable/amp.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpc_amp.amp.casting import HALF_TYPES, map_leaves

Cast = Callable[[Any, torch.dtype, str], Any]
"""Casts arguments: `cast(arguments, half type, device type)`. Tensors on other devices stay."""

_OWNERS = (torch, torch.Tensor, F)

_HALF_ON_CPU = ("addmv", "addr", "mv")
_RECURRENT_ON_CPU = (
    "gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell"
)  # fmt: skip
_FP32 = (
    # `x **= 2` then makes x a new tensor in fp32, as in apex.
    "__ipow__",
    "cpu", "ctc_loss", "gelu", "grid_sample", "interpolate", "local_response_norm",
    "multilabel_soft_margin_loss", "std", "var",
)  # fmt: skip
_FP32_ON_CPU = (
    "__pow__", "__rpow__", "acos", "asin", "binary_cross_entropy_with_logits", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist",
    "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss",
    "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "nll_loss",
    "norm", "normalize", "poisson_nll_loss", "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "sum", "tan",
    "triplet_margin_loss",
)  # fmt: skip
_WIDEST = ("vdot",)  # newer than apex, used by spectral norms, and missing in older autocasts
_WIDEST_ON_CPU = ("bilinear", "cross", "dot")


def to_half(arguments: Any, half: torch.dtype, device_type: str) -> Any:
    """Cast fp32 tensors to `half`."""
    return _cast((torch.float32, *HALF_TYPES), half, arguments, device_type)


def to_fp32(arguments: Any, half: torch.dtype, device_type: str) -> Any:
    """Cast half-precision tensors to fp32."""
    return _cast(HALF_TYPES, torch.float32, arguments, device_type)


def to_widest(arguments: Any, half: torch.dtype, device_type: str) -> Any:
    """Cast floating-point tensors of different types to the widest of these types."""
    found: list[torch.dtype] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            found.append(leaf.dtype)
        return leaf

    map_leaves(note, arguments)
    if len(set(found)) < 2:
        return arguments
    return _cast(set(found), functools.reduce(torch.promote_types, found), arguments, device_type)


def has_half(arguments: Any) -> bool:
    """Whether any tensor in `arguments` is in half precision."""
    found: list[bool] = []
    map_leaves(lambda leaf: found.append(getattr(leaf, "dtype", None) in HALF_TYPES), arguments)
    return any(found)


def _cast(sources: Any, dtype: torch.dtype, arguments: Any, device_type: str) -> Any:
    def cast(leaf: Any) -> Any:
        eligible = isinstance(leaf, Tensor) and leaf.dtype in sources
        return leaf.to(dtype) if eligible and leaf.device.type == device_type else leaf

    return map_leaves(cast, arguments)


def rules_for(device_type: str) -> dict[tuple[Any, str], Cast]:
    """The functions of torch that have to be cast on a type of device: `(owner, name) -> cast`."""
    rules = {**_everywhere(_FP32, to_fp32), **_everywhere(_WIDEST, to_widest)}
    if device_type == "cpu":
        rules |= _everywhere(_HALF_ON_CPU, to_half)
        rules |= {(torch._VF, name): to_half for name in _RECURRENT_ON_CPU}
        rules |= _everywhere(_FP32_ON_CPU, to_fp32)
        rules |= _everywhere(_WIDEST_ON_CPU, to_widest)
    return rules


def in_place_fp32_functions() -> dict[str, Callable[..., Any]]:
    """The tensor methods that compute in fp32 and write to their tensor: `name -> method`."""
    names = (f"{name}_" for name in (*_FP32, *_FP32_ON_CPU))
    return {name: getattr(Tensor, name) for name in names if hasattr(Tensor, name)}


def is_of_torch(owner: Any) -> bool:
    """Whether functions of `owner` are torch's own."""
    return owner in (*_OWNERS, torch._VF)


def _everywhere(names: tuple[str, ...], cast: Cast) -> dict[tuple[Any, str], Cast]:
    """A rule for each name, in each part of torch that has the name."""
    return {(owner, name): cast for owner in _OWNERS for name in names if hasattr(owner, name)}
