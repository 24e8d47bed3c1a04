"""Loads weights from a file, to begin a training with."""

from __future__ import annotations

import pickle
import re
from typing import Any

import torch
from torch import nn

from hpc_amp.tasks.base import ModelError

_DDP_PREFIX = "module."


def read_weights(path: str) -> dict[Any, Any]:
    """The dictionary in a file that `torch.save` wrote, on the CPU. Runs no code from the file.

    Raises ModelError if the file cannot be read, holds other objects than tensors, numbers, texts
    and containers of them, or no dictionary.
    """
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's message goes on with how to run the code in the file.
        found = re.search(r"\bGLOBAL:? ([\w.]+)", str(error))
        what = f"it holds other objects than tensors: {found[1]}" if found else _line(error)
        raise ModelError(f"the weights in {path} cannot be read: {what}") from error
    except (OSError, RuntimeError, EOFError) as error:
        raise ModelError(f"the weights in {path} cannot be read: {_line(error)}") from error
    if not isinstance(state, dict):
        raise ModelError(f"{path} holds a {type(state).__name__} instead of weights")
    return state


def load_weights(network: nn.Module, path: str, part: str) -> None:
    """Load weights into `network`.

    `path`: a file with a state dict, or with one for each network, such as `networks.pt` of a
    checkpoint, from which the entry `part` is taken. The names may have DDP's prefix.

    Raises ModelError if the file cannot be read or belongs to another network.
    """
    state: Any = read_weights(path)
    if part in state:
        state = state[part]
    if not isinstance(state, dict):
        raise ModelError(f"{path} holds a {type(state).__name__} instead of weights")
    try:
        network.load_state_dict({str(k).removeprefix(_DDP_PREFIX): v for k, v in state.items()})
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the weights in {path} belong to another {part}: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
