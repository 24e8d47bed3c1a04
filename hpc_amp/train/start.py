"""The beginning of a run with the weights of another one, or of a file (`train.start_from`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hpc_amp.config.schema import StartFrom
from hpc_amp.data.together import from_main, together
from hpc_amp.distributed.world import World
from hpc_amp.files import through_latest
from hpc_amp.models.weights import UnreadableError, read_tensors
from hpc_amp.tasks.base import ModelError
from hpc_amp.train.checkpoint import CheckpointStore, weights_of
from hpc_amp.train.manifest import MANIFEST, DamagedCheckpoint

_SHOWN = 3
"""Names of tensors that a message shows."""
_COUNTER = "num_batches_tracked"
"""Batch norms of old state dicts lack it; no layer here reads it."""


def start_networks(networks: Mapping[str, nn.Module], start: StartFrom, world: World) -> list[str]:
    """Load weights into new `networks`, by name. Returns lines for the log: the file, how many
    tensors each network got, and what was left out. A collective call.

    Raises ModelError, on every rank, if there is no such file, if it has no weights of a network,
    or if tensors are missing, have no place or have another shape.
    """
    wanted = start.networks or list(networks)
    unknown = [name for name in wanted if name not in networks]
    if unknown:
        raise ModelError(
            f"train.start_from.networks: the task has no network {unknown[0]}, but "
            f"{', '.join(networks)}"
        )
    file = from_main(world, lambda: _find(start))
    return together(world, lambda: _load(networks, wanted, file, start))


def _find(start: StartFrom) -> str:
    """The file to read: that of the newest valid checkpoint of a run, or of a checkpoint."""
    path = through_latest(Path(start.path).expanduser())
    if path.is_file():
        return str(path)
    folder = path if (path / MANIFEST).is_file() else _newest(path)
    store = CheckpointStore.of_run(folder.parent)
    step = next((step for step in store.steps() if store.path(step) == folder), None)
    if step is None:
        raise ModelError(f"train.start_from: {folder} is not named as a checkpoint is")
    try:
        store.verify(step)
    except (DamagedCheckpoint, OSError) as error:
        raise ModelError(f"train.start_from: the checkpoint {folder} is damaged: {error}") from None
    stem = weights_of(folder, start.weights)
    if not (folder / f"{stem}.pt").is_file():
        raise ModelError(f"train.start_from: {folder} has no {stem}.pt: use weights=networks")
    return str(folder / f"{stem}.pt")


def _newest(run: Path) -> Path:
    """The newest valid checkpoint of a run."""
    store = CheckpointStore.of_run(run / "checkpoints")
    step = store.newest()
    if step is None:
        raise ModelError(
            f"train.start_from: {run} is neither a file of weights, nor a checkpoint, nor the "
            "directory of a run with a valid checkpoint"
        )
    return store.path(step)


def _load(
    networks: Mapping[str, nn.Module], wanted: list[str], file: str, start: StartFrom
) -> list[str]:
    tensors = _renamed(dict(_flat(_read(file))), start.names, file)
    prefixes = {name: f"{name}." for name in wanted}
    if len(wanted) == 1 and not any(key.startswith(prefixes[wanted[0]]) for key in tensors):
        prefixes = {wanted[0]: ""}  # the state dict of a single network
    loaded, kept, used = [], [], 0
    for name, prefix in prefixes.items():
        given = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        if not given:
            raise ModelError(
                f"{file} has no tensors of {name}: its names are {_names(tensors)}. Name the "
                "networks that it has in train.start_from.networks, or map its names with "
                "train.start_from.names"
            )
        count, problems = _load_network(networks[name], given, partial=start.partial)
        if count == 0:
            raise ModelError(f"nothing in {file} fits {name}: {'; '.join(problems)}")
        if problems and not start.partial:
            raise ModelError(f"the weights in {file} do not fit {name}: {'; '.join(problems)}")
        loaded.append(f"{name} ({count} tensors)")
        kept += [f"WARNING: {name} begins without some weights: {p}" for p in problems]
        used += len(given)
    lines = [f"a new run, which begins with weights of {file}: {', '.join(loaded)}", *kept]
    if used < len(tensors):
        rest = [key for key in tensors if not key.startswith(tuple(prefixes.values()))]
        lines.append(f"not used: {len(rest)} other tensors of the file: {_names(rest)}")
    return lines


def _load_network(
    network: nn.Module, given: Mapping[str, Tensor], *, partial: bool
) -> tuple[int, list[str]]:
    """Load the tensors that fit, if all do or `partial` allows others. Returns their number, and
    what does not fit."""
    own: dict[str, Tensor] = network.state_dict()
    if own and all(key.startswith("module.") for key in own):  # not a prefix of DDP
        given = {key if key in own else f"module.{key}": value for key, value in given.items()}
    missing = [key for key in own if key not in given and not key.endswith(_COUNTER)]
    unexpected = [key for key in given if key not in own]
    other = [key for key in own if key in given and own[key].shape != given[key].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} are missing: {_names(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} have no place: {_names(unexpected)}")
    if other:
        shapes = [f"{k} {_shape(given[k])} instead of {_shape(own[k])}" for k in other]
        problems.append(f"{len(other)} have another shape: {_names(shapes)}")
    fitting = {key: given[key] for key in own if key in given and key not in other}
    if partial or not problems:
        network.load_state_dict(fitting, strict=False)
    return len(fitting), problems


def _read(file: str) -> dict[Any, Any]:
    """The dictionary in a file of `torch.save`. Runs no code from it. Raises ModelError."""
    try:
        state = read_tensors(file)
    except (OSError, UnreadableError) as error:
        raise ModelError(f"the weights in {file} cannot be read: it {error}") from error
    if not isinstance(state, dict):
        raise ModelError(f"{file} holds a {type(state).__name__} instead of weights")
    return state


def _flat(state: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    """The tensors in nested dictionaries, with their keys joined by dots. DDP's and torch.compile's
    prefix of all keys of a dictionary is removed."""
    keys = [str(key) for key in state]
    for wrapper in ("_orig_mod.", "module.", "_orig_mod."):  # either may be the outer one
        if keys and all(key.startswith(wrapper) for key in keys):
            keys = [key.removeprefix(wrapper) for key in keys]
    for key, value in zip(keys, state.values(), strict=True):
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")


def _renamed(
    tensors: Mapping[str, Tensor], rules: Mapping[str, str], file: str
) -> dict[str, Tensor]:
    """`tensors` with the names that `rules` give them. Raises ModelError if two get the same."""
    found: dict[str, Tensor] = {}
    before: dict[str, str] = {}
    for name, tensor in tensors.items():
        new = name
        for pattern, replacement in rules.items():
            new = re.sub(pattern, replacement, new)
        if new in found:
            raise ModelError(
                f"train.start_from.names gives two tensors of {file} the name {new}: "
                f"{before[new]} and {name}"
            )
        if new:
            found[new], before[new] = tensor, name
    return found


def _names(names: Iterable[str]) -> str:
    """The first names, and how many follow."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
