"""The state of amp in this process, which `amp.initialize` sets up."""

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
    """Everything that `initialize` made.

    `properties`: None if amp was initialized with `enabled=False`.
    `replicas`: the models in DDP that have been trained since.
    `undo`: closing it reverts everything.
    """

    properties: Properties | None
    verbosity: int
    scalers: list[LossScaler] = field(default_factory=list)
    masters: MasterWeights | None = None
    function_casts: FunctionCasts | None = None
    optimizers: dict[Any, PatchedOptimizer] = field(default_factory=dict)
    replicas: list[DistributedDataParallel] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)

    def say(self, text: str, *, verbosity: int = 1) -> None:
        """Print a line on rank 0, if the verbosity of amp is at least `verbosity`."""
        distributed = dist.is_available() and dist.is_initialized()
        is_main = not distributed or dist.get_rank() == 0
        if self.verbosity >= verbosity and is_main:
            print(f"amp: {text}", flush=True)


_current: AmpState | None = None


def current() -> AmpState:
    """The state of amp. Raises RuntimeError before `initialize` and after `reset`."""
    if _current is None:
        raise RuntimeError("amp.initialize was not called yet, or amp.reset() was called since")
    return _current


def is_initialized() -> bool:
    """Whether `initialize` was called, and `reset` not since then."""
    return _current is not None


def function_casts() -> FunctionCasts | None:
    """The casts of O1, or None at other levels and before `initialize`."""
    return _current.function_casts if _current is not None else None


def without_casts() -> AbstractContextManager[object]:
    """A context in which functions compute in the types of their arguments, at O1 as well."""
    casts = function_casts()
    return nullcontext() if casts is None else casts.disabled()


def start(state: AmpState) -> None:
    """Set the state of amp in this process."""
    global _current
    _current = state


def reset() -> None:
    """Revert `amp.initialize`, which may then be called again.

    torch's functions, the models and the optimizers are restored. Weights keep their trained values
    and are fp32 again; where they have master weights, they get the values of these. Does nothing
    before `initialize`. Call it in the thread that called `initialize`.
    """
    global _current
    state, _current = _current, None
    if state is not None:
        state.undo.close()
