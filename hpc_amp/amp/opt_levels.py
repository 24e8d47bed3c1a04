"""The opt levels O0 to O3 of apex.amp: their properties, and which of these may be overridden."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from hpc_amp.amp.casting import HALF_TYPES


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of an opt level (https://nvidia.github.io/apex/amp.html).

    `cast_model_type`: the type of the weights; None leaves them as they are.
    `patch_torch_functions`: each function computes in the type that suits it.
    `keep_batchnorm_fp32`: batch norm layers stay fp32 when weights are cast.
    `master_weights`: optimizers work on fp32 copies of half-precision weights.
    `loss_scale`: "dynamic" or a number.
    """

    opt_level: str
    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | Literal["dynamic"]

    def __str__(self) -> str:
        shown = (f"{name}={getattr(self, name)}" for name in self.__slots__)
        return ", ".join(shown)


def resolve(opt_level: str, half: torch.dtype, overrides: Mapping[str, Any]) -> Properties:
    """The properties of `opt_level`, changed by `overrides`, in which None keeps the level's value.

    `half` is float16 or bfloat16. bfloat16 has the range of fp32 and needs no loss scale.

    Raises the same types as apex: RuntimeError for an unknown level and for a property that the
    level does not have, AssertionError or ValueError for a value that the property cannot have.
    """
    if half not in HALF_TYPES:
        raise ValueError(f"dtype is torch.float16 or torch.bfloat16, not {half}")
    properties = _level(opt_level, half)
    for name, value in overrides.items():
        if value is not None:
            checked: Any = _CHECKS[name](opt_level, value)
            properties = replace(properties, **{name: checked})
    return properties


def _level(opt_level: str, half: torch.dtype) -> Properties:
    """The properties of a level. Raises RuntimeError for an unknown one."""
    dynamic: float | Literal["dynamic"] = "dynamic" if half is torch.float16 else 1.0
    levels = (
        Properties("O0", torch.float32, False, None, False, 1.0),
        Properties("O1", None, True, None, None, dynamic),
        Properties("O2", half, False, True, True, dynamic),
        Properties("O3", half, False, False, False, 1.0),
    )
    for level in levels:
        if level.opt_level == opt_level:
            return level
    raise RuntimeError(
        f"opt_level {opt_level!r} does not exist: the levels are 'O0', 'O1', 'O2' and 'O3', "
        "with the letter O in front, not a zero"
    )


def _cast_model_type(level: str, value: Any) -> torch.dtype | None:
    if level == "O1" and value not in (False, torch.float32):
        raise RuntimeError(
            "cast_model_type cannot be set at O1: weights stay fp32, and functions cast their "
            "arguments. To cast the weights themselves use O2 or O3"
        )
    if level == "O1" or not value:
        return None
    dtype: torch.dtype = value
    return dtype


def _patch_torch_functions(level: str, value: Any) -> bool:
    if level != "O1" and value:
        raise RuntimeError(
            f"patch_torch_functions belongs to O1: at {level}, functions compute in the type of "
            "the weights"
        )
    return bool(value)


def _keep_batchnorm_fp32(level: str, value: Any) -> bool:
    if level == "O1":
        raise RuntimeError(
            "keep_batchnorm_fp32 has no meaning at O1, where batch norm has fp32 weights anyway: "
            "leave it out"
        )
    named = {"True": True, "False": False}
    if isinstance(value, str) and value in named:
        return named[value]
    if not isinstance(value, bool):
        raise AssertionError(f"keep_batchnorm_fp32 is True or False, not {value!r}")
    return value


def _master_weights(level: str, value: Any) -> bool:
    if level == "O1":
        raise RuntimeError(
            "master_weights has no meaning at O1, where the model's own weights are fp32: leave it "
            "out"
        )
    return bool(value)


def _loss_scale(level: str, value: Any) -> float | Literal["dynamic"]:
    if value == "dynamic":
        return "dynamic"
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(f"loss_scale is 'dynamic' or a number above 0, not {value!r}")
    return scale


_CHECKS = {
    "cast_model_type": _cast_model_type,
    "patch_torch_functions": _patch_torch_functions,
    "keep_batchnorm_fp32": _keep_batchnorm_fp32,
    "master_weights": _master_weights,
    "loss_scale": _loss_scale,
}
