"""Functions of the user that cast at O1: by decorator, or by module and name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from hpc_amp.amp import state
from hpc_amp.amp.function_rules import Cast, to_fp32, to_half, to_widest

Function = TypeVar("Function", bound=Callable[..., Any])

registered: dict[tuple[Any, str], Cast] = {}
"""What `register_*` stored for the next `initialize`."""


def half_function(function: Function) -> Function:
    """Decorator: at O1, cast the tensors in the arguments of `function` to half precision."""
    return _decorate(function, to_half)


def float_function(function: Function) -> Function:
    """Decorator: at O1, cast the tensors in the arguments of `function` to fp32. Functions that it
    calls still have their own rules; use `disable_casts` in it to turn these off."""
    return _decorate(function, to_fp32)


def promote_function(function: Function) -> Function:
    """Decorator: at O1, cast the tensors in the arguments of `function` to the widest of their
    types."""
    return _decorate(function, to_widest)


def register_half_function(module: Any, name: str) -> None:
    """Make `module.name` a half function from the next `initialize` on, for code that you cannot
    decorate. Raises ValueError if there is no such function, RuntimeError after `initialize`."""
    _register(module, name, to_half)


def register_float_function(module: Any, name: str) -> None:
    """Make `module.name` a float function, as `register_half_function` does."""
    _register(module, name, to_fp32)


def register_promote_function(module: Any, name: str) -> None:
    """Make `module.name` a promote function, as `register_half_function` does."""
    _register(module, name, to_widest)


def _decorate(function: Function, cast: Cast) -> Function:
    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        casts = state.function_casts()
        if casts is None:
            return function(*args, **kwargs)
        return casts.call(function, cast, args, kwargs, whole=False)

    # It has the signature of `function`, which mypy cannot see.
    return decorated  # type: ignore[return-value]


def _register(module: Any, name: str, cast: Cast) -> None:
    if not hasattr(module, name):
        raise ValueError(f"{module.__name__} has no function {name!r}")
    if state.is_initialized():
        raise RuntimeError(
            f"{module.__name__}.{name} was registered after amp.initialize, which has no effect: "
            "register functions before it"
        )
    registered[module, name] = cast
