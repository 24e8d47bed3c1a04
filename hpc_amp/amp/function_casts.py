"""Opt level O1: every function computes in the type that suits it.

torch.autocast does most of what apex did with patched functions. The rest, which is much on a CPU
and little on a GPU, is patched here, so that apex's rules hold on both. A patch only has an effect
while autocast is on in the calling thread, so torch's own switch is the only one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpc_amp.amp.casting import HALF_TYPES
from hpc_amp.amp.function_rules import (
    Cast,
    has_half,
    in_place_fp32_functions,
    is_of_torch,
    rules_for,
)


class FunctionCasts:
    """Patches functions for one type of device. The patches cast while autocast is on: inside
    `torch.autocast`, or after `switch_on`.

    `half`: the half-precision type.
    `registered`: the user's functions, `(owner, name) -> cast`. They precede apex's own rules.
    `trace`: is called with a line for each call that a patch casts.
    `undo`: closing it removes the patches.
    """

    def __init__(
        self,
        device_type: str,
        half: torch.dtype,
        registered: dict[tuple[Any, str], Cast],
        trace: Callable[[str], None] | None,
        undo: ExitStack,
    ) -> None:
        self.device_type = device_type
        self.half = half
        self._trace = trace
        for (owner, name), cast in {**rules_for(device_type), **registered}.items():
            original = getattr(owner, name)
            # A function of torch computes as a whole in the type of its arguments. A function of
            # the user consists of functions that have rules of their own.
            patched = self._wrap(original, cast, whole=is_of_torch(owner))
            _replace(owner, name, patched, undo)
        for name, in_place in in_place_fp32_functions().items():
            _replace(Tensor, name, self._refuse_half_in_place(in_place), undo)
        if (F, "binary_cross_entropy") not in registered:
            only_fp32 = self._refuse_half(F.binary_cross_entropy)
            _replace(F, "binary_cross_entropy", only_fp32, undo)

    def switch_on(self, undo: ExitStack) -> None:
        """Cast in all code of the calling thread until `undo` is closed."""
        # Without the cache of casts, because torch only empties it at the end of an autocast block,
        # and this block has no end. Weights from before an optimizer's step would be used after it.
        autocast = torch.autocast(self.device_type, dtype=self.half, cache_enabled=False)
        undo.enter_context(autocast)

    def active(self) -> bool:
        """Whether functions cast in this thread."""
        return autocast_is_on(self.device_type)

    def disabled(self) -> AbstractContextManager[object]:
        """A context without casts."""
        return torch.autocast(self.device_type, enabled=False)

    def call(
        self, function: Callable[..., Any], cast: Cast, args: Any, kwargs: Any, *, whole: bool
    ) -> Any:
        """Call `function` with cast arguments, if casts are on. With `whole`, functions that it
        calls do not cast."""
        if not self.active():
            return function(*args, **kwargs)
        if self._trace is not None:
            self._trace(f"{function.__name__}: {cast.__name__}")
        args, kwargs = cast((args, kwargs), self.half, self.device_type)
        with self.disabled() if whole else nullcontext():
            return function(*args, **kwargs)

    def _wrap(self, function: Callable[..., Any], cast: Cast, *, whole: bool) -> Callable[..., Any]:
        """Wrap a function so that its arguments are cast."""

        @functools.wraps(function)
        def cast_arguments(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, cast, args, kwargs, whole=whole)

        return cast_arguments

    def _refuse_half(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that it raises NotImplementedError for half-precision arguments."""

        @functools.wraps(function)
        def check(*args: Any, **kwargs: Any) -> Any:
            if not self.active():
                return function(*args, **kwargs)
            if not has_half((args, kwargs)):
                with self.disabled():  # torch.autocast refuses fp32 tensors as well
                    return function(*args, **kwargs)
            raise NotImplementedError(
                f"amp does not allow {function.__name__} of half tensors, because its gradient "
                "overflows in fp16. Remove the sigmoid and use binary_cross_entropy_with_logits; "
                "or, before amp.initialize, call amp.register_float_function(torch, 'sigmoid') or "
                "amp.register_float_function(torch.nn.functional, 'binary_cross_entropy')"
            )

        return check

    def _refuse_half_in_place(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a tensor method that works in place so that it raises NotImplementedError for a
        half-precision tensor: the result would be fp32."""

        @functools.wraps(function)
        def check(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.dtype in HALF_TYPES and self.active():
                raise NotImplementedError(
                    f"amp computes {function.__name__.rstrip('_')} in fp32, so it cannot change a "
                    f"{tensor.dtype} tensor in place: call it without the underscore"
                )
            return function(tensor, *args, **kwargs)

        return check


def _replace(owner: Any, name: str, replacement: Any, undo: ExitStack) -> None:
    """Set an attribute of a module or class. Closing `undo` restores it."""
    if name in vars(owner):
        own = vars(owner)[name]  # getattr would return the function inside a static method
        if isinstance(own, staticmethod):
            replacement = staticmethod(replacement)
        undo.callback(setattr, owner, name, own)
    else:  # inherited: deleting the replacement restores it
        undo.callback(delattr, owner, name)
    setattr(owner, name, replacement)


def autocast_is_on(device_type: str) -> bool:
    """Whether autocast is on for `device_type` in this thread."""
    try:
        return torch.is_autocast_enabled(device_type)
    except TypeError:  # before torch 2.4
        cpu = device_type == "cpu"
        return torch.is_autocast_cpu_enabled() if cpu else torch.is_autocast_enabled()
