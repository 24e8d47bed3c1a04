"""Loads weights from a file, to begin a training with."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import nn

from hpc_amp.tasks.base import ModelError

_DDP_PREFIX = "module."


def load_weights(network: nn.Module, path: str, part: str) -> None:
    """Load weights into `network`.

    `path`: a file with a state dict, or with one for each network, such as `networks.pt` of a
    checkpoint, from which the entry `part` is taken. The names may have DDP's prefix.

    Raises ModelError if the file cannot be read or belongs to another network.
    """
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"the weights in {path} cannot be read: {_line(error)}") from error
    if isinstance(state, dict) and part in state:
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
