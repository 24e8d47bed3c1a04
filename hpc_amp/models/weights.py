"""Loads weights from a file, to begin a training with."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import torch
from torch import nn

from hpc_amp.tasks.base import ModelError

_DDP_PREFIX = "module."


def load_weights(network: nn.Module, path: str, part: str) -> None:
    """Load weights into `network`. `path` and `part` are those of `read_weights`.

    Raises ModelError if the file cannot be read or belongs to another network.
    """
    state = read_weights(path, part)
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the weights in {path} belong to another {part}: {one_line(error)}"
        ) from error


def read_weights(path: str, part: str) -> dict[str, Any]:
    """Read a state dict. No code in the file is executed.

    `path`: a file with a state dict, or with one for each network, such as `networks.pt` of a
    checkpoint, from which the entry `part` is taken. The names may have DDP's prefix, which is
    removed.

    Raises ModelError if the file cannot be read.
    """
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"the weights in {path} cannot be read: {one_line(error)}") from error
    if isinstance(state, dict) and part in state:
        state = state[part]
    if not isinstance(state, dict):
        raise ModelError(f"{path} holds a {type(state).__name__} instead of weights")
    return {str(name).removeprefix(_DDP_PREFIX): value for name, value in state.items()}


def sha256_of(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def one_line(error: Exception) -> str:
    """The text of an error of torch, of at most 300 characters."""
    return " ".join(str(error).split())[:300]
