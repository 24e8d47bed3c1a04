"""What `amp.initialize` set up in this process."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.function_casts import FunctionCasts
from hpc_amp.amp.master_weights import MasterWeights
from hpc_amp.amp.opt_levels import Properties
from hpc_amp.amp.optimizer_patch import PatchedOptimizer
from hpc_amp.amp.scaler import LossScaler


@dataclass
class AmpState:
    """Everything that `initialize` made. `properties` is None where amp was initialized with
    `enabled=False`; `replicas` are the models in DDP that were trained since. Closing `undo` takes
    it all back."""

    properties: Properties | None
    verbosity: int
    scalers: list[LossScaler] = field(default_factory=list)
    masters: MasterWeights | None = None
    function_casts: FunctionCasts | None = None
    optimizers: dict[Any, PatchedOptimizer] = field(default_factory=dict)
    replicas: list[DistributedDataParallel] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)

    def say(self, text: str, *, verbosity: int = 1) -> None:
        """Print a line on rank 0, where at least `verbosity` was asked for."""
        if self.verbosity >= verbosity and not _is_other_rank():
            print(f"amp: {text}", flush=True)


_current: AmpState | None = None


def current() -> AmpState:
    """What `initialize` made. Raises RuntimeError before it."""
    if _current is None:
        raise RuntimeError("amp.initialize was not called yet, or amp.reset() was called since")
    return _current


def is_initialized() -> bool:
    """Whether `initialize` was called, and `reset` not since."""
    return _current is not None


def function_casts() -> FunctionCasts | None:
    """The casts of O1, or None at other levels and before `initialize`."""
    return _current.function_casts if _current is not None else None


def without_casts() -> AbstractContextManager[object]:
    """A context in which functions compute in the types that they are given, at O1 too."""
    casts = function_casts()
    return nullcontext() if casts is None else casts.disabled()


def start(state: AmpState) -> None:
    """Make `state` that of the process."""
    global _current
    _current = state


def reset() -> None:
    """Take the process back to before `amp.initialize`, which may then be called anew.

    torch's functions, the models and the optimizers are as they were, except for what training
    changed: weights are fp32 again, with the values of their masters where they have some. Without
    an `initialize` before, it does nothing. Call it in the thread that called `initialize`.
    """
    global _current
    state, _current = _current, None
    if state is not None:
        state.undo.close()


def _is_other_rank() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_rank() > 0
