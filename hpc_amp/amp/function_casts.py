"""O1: every function computes in the type that suits it.

torch.autocast does most of what apex did by patching functions. What it does not do, on a CPU far
more than on a GPU, is patched here: the rules of apex hold on both. Patches work only where
autocast is on in the calling thread, so that torch's own switch is the only one.
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
    """Patches of functions for one type of device, until `undo` is closed. They cast where autocast
    is on: inside `torch.autocast`, or from `switch_on` on.

    Registered functions are `(owner, name) -> cast` and come before apex's own rules. `trace` is
    told of every call that is cast by a patch.
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
            # torch's own functions compute as a whole in what they are given; a user's function is
            # made of functions that have rules of their own.
            patched = self._wrap(original, cast, whole=is_of_torch(owner))
            _replace(owner, name, patched, undo)
        for name, in_place in in_place_fp32_functions().items():
            _replace(Tensor, name, self._refuse_half_in_place(in_place), undo)
        if (F, "binary_cross_entropy") not in registered:
            only_fp32 = self._refuse_half(F.binary_cross_entropy)
            _replace(F, "binary_cross_entropy", only_fp32, undo)

    def switch_on(self, undo: ExitStack) -> None:
        """Cast in all code of the calling thread, until `undo` is closed."""
        # No cache of casts: torch empties it at the end of an autocast block, and there is no end
        # here, so that weights from before an optimizer's step would be used after it.
        autocast = torch.autocast(self.device_type, dtype=self.half, cache_enabled=False)
        undo.enter_context(autocast)

    def active(self) -> bool:
        """Whether casts are on in this thread."""
        return autocast_is_on(self.device_type)

    def disabled(self) -> AbstractContextManager[object]:
        """A context without casts."""
        return torch.autocast(self.device_type, enabled=False)

    def call(
        self, function: Callable[..., Any], cast: Cast, args: Any, kwargs: Any, *, whole: bool
    ) -> Any:
        """Call `function` with its arguments cast, if casts are on; without casts inside it if
        `whole`."""
        if not self.active():
            return function(*args, **kwargs)
        if self._trace is not None:
            self._trace(f"{function.__name__}: {cast.__name__}")
        args, kwargs = cast((args, kwargs), self.half, self.device_type)
        with self.disabled() if whole else nullcontext():
            return function(*args, **kwargs)

    def _wrap(self, function: Callable[..., Any], cast: Cast, *, whole: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def cast_arguments(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, cast, args, kwargs, whole=whole)

        return cast_arguments

    def _refuse_half(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def check(*args: Any, **kwargs: Any) -> Any:
            if not self.active():
                return function(*args, **kwargs)
            if not has_half((args, kwargs)):
                with self.disabled():  # torch.autocast refuses fp32 tensors, too
                    return function(*args, **kwargs)
            raise NotImplementedError(
                f"amp does not allow {function.__name__} of half tensors: its gradient overflows "
                "in fp16. Leave the sigmoid out and use binary_cross_entropy_with_logits; or give "
                "it fp32 tensors: amp.register_float_function(torch, 'sigmoid') before "
                "amp.initialize, or (torch.nn.functional, 'binary_cross_entropy') in its place"
            )

        return check

    def _refuse_half_in_place(self, function: Callable[..., Any]) -> Callable[..., Any]:
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
    if name in vars(owner):
        own = vars(owner)[name]  # getattr would unpack a static method
        if isinstance(own, staticmethod):
            replacement = staticmethod(replacement)
        undo.callback(setattr, owner, name, own)
    else:  # inherited: as before once the replacement is gone
        undo.callback(delattr, owner, name)
    setattr(owner, name, replacement)


def autocast_is_on(device_type: str) -> bool:
    """Whether autocast is on for `device_type` in this thread."""
    try:
        return torch.is_autocast_enabled(device_type)
    except TypeError:  # before torch 2.4
        cpu = device_type == "cpu"
        return torch.is_autocast_cpu_enabled() if cpu else torch.is_autocast_enabled()
