"""Loads weights from a file, to begin a training with."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpc_amp.tasks.base import ModelError

_DDP_PREFIX = "module."


class UnreadableError(Exception):
    """A file that is not one of `torch.save`, or has other things than tensors in it. The text goes
    on after the name of the file."""


def read_tensors(path: str | Path) -> Any:
    """Tensors, numbers and containers of them from a file of `torch.save`. Never runs code from the
    file. Raises OSError, MemoryError, or UnreadableError."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Only what was found: torch's message goes on with how to run the code in the file.
        found = re.search(r"\bGLOBAL:? ([\w.]+)", str(error))
        named = f": {found[1]}" if found else ""
        raise UnreadableError(f"holds other objects than tensors{named}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch may raise anything if a file is not its own
        raise UnreadableError(f"cannot be read ({one_line(error) or repr(error)})") from error


def load_weights(network: nn.Module, path: str, part: str) -> None:
    """Load weights into `network`. `path` and `part` are those of `read_weights`.

    Raises ModelError if the file cannot be read or belongs to another network.
    """
    state = read_weights(path, part, network.state_dict().keys())
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the weights in {path} belong to another {part}: {one_line(error)}"
        ) from error


def read_weights(path: str, part: str, own: Collection[str] = ()) -> dict[str, Any]:
    """Read a state dict. No code in the file is executed.

    `path`: a file with a state dict, or with one for each network, such as `networks.pt` of a
    checkpoint, from which the entry `part` is taken. The names may have DDP's prefix, which is
    removed, unless they are names of the network's `own`.

    Raises ModelError if the file cannot be read.
    """
    try:
        state = read_tensors(path)
    except (OSError, UnreadableError) as error:
        raise ModelError(f"the weights in {path} cannot be read: it {error}") from error
    if isinstance(state, dict) and part in state:
        state = state[part]
    if not isinstance(state, dict):
        raise ModelError(f"{path} holds a {type(state).__name__} instead of weights")
    names = [str(name) for name in state]
    if not all(name in own for name in names):
        names = [name.removeprefix(_DDP_PREFIX) for name in names]
    return dict(zip(names, state.values(), strict=True))


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
