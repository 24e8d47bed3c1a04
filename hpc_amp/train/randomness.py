"""Random generators: seeding, and their state as tensors that load with weights_only."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from hpc_amp.distributed.world import World


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed the generators of Python, and of torch on all devices.

    Each `rank` has another stream of random numbers. The engine uses 0 for what is equal on all
    ranks, such as initial weights, and 1 + rank for the rest.
    """
    mixed = (seed * 1_000_003 + rank * 7_919 + 12_345) % 2**63
    random.seed(mixed)
    torch.manual_seed(mixed)


def own_state(device: torch.device) -> dict[str, Tensor]:
    """The state of this rank's generators."""
    version, internal, gauss = random.getstate()
    state = {
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_own_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore the state that `own_state` returned."""
    version, *internal = state["python"].tolist()
    gauss = state["python_gauss"].tolist()
    random.setstate((version, tuple(internal), gauss[0] if gauss else None))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def restore(states: list[dict[str, Tensor]], world: World, device: torch.device, seed: int) -> bool:
    """Restore the state of this rank's generators. `states` has one state for each rank. If that is
    another number of ranks than now, each rank begins a new stream. Returns whether the state was
    restored."""
    if len(states) != world.size:
        seed_everything(seed, world.rank + world.size)
        return False
    set_own_state(states[world.rank], device)
    return True
