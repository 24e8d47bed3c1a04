"""The state of loss scalers in the formats of apex.amp and torch.amp.GradScaler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_amp.amp.scaler import LossScaler


def apex_state(scalers: Sequence[LossScaler]) -> OrderedDict[str, dict[str, float | int]]:
    """One entry for each loss, `loss_scaler0`, `loss_scaler1`, ..., each with `loss_scale` and
    `unskipped`, the number of steps since the scale last changed."""
    return OrderedDict(
        (f"loss_scaler{i}", {"loss_scale": scaler.value, "unskipped": scaler.clean_steps})
        for i, scaler in enumerate(scalers)
    )


def load_apex_state(
    scalers: Sequence[LossScaler], state: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Load what `apex_state` returned. Entries are used in their order, not by their numbers. If
    there are more or fewer entries than losses, the rest is ignored and `say` is called.

    Raises RuntimeError if there are other keys, after the entries were loaded.
    """
    entries = {key: entry for key, entry in state.items() if "loss_scaler" in key}
    if len(entries) != len(scalers):
        say(f"the state to load has {len(entries)} loss scalers, but num_losses is {len(scalers)}")
    for scaler, entry in zip(scalers, entries.values(), strict=False):
        _load(scaler, entry["loss_scale"], entry["unskipped"], say)
    unknown = sorted(state.keys() - entries.keys())
    if unknown:
        raise RuntimeError(f"the state to load has keys that belong to no loss scaler: {unknown}")


def grad_scaler_state(scaler: LossScaler) -> dict[str, float | int]:
    """The state for `torch.amp.GradScaler.load_state_dict`. It has no limits of the scale."""
    return {
        "scale": scaler.value,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": scaler.config.growth_interval,
        "_growth_tracker": scaler.clean_steps,
    }


def is_grad_scaler_state(state: Mapping[str, Any]) -> bool:
    """Whether `state` was made by `torch.amp.GradScaler.state_dict`."""
    return "scale" in state and "_growth_tracker" in state


def load_grad_scaler_state(
    scalers: Sequence[LossScaler], state: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Give every loss the scale of a GradScaler, which its losses shared. Its factors and its
    interval are ignored."""
    for scaler in scalers:
        _load(scaler, state["scale"], state["_growth_tracker"], say)


def _load(scaler: LossScaler, scale: float, clean_steps: int, say: Callable[[str], None]) -> None:
    scaler.clean_steps = int(clean_steps)
    if scaler.dynamic:
        # In apex, a scale could fall to 0, from which it would never grow again.
        scaler.value = max(float(scale), scaler.config.min_scale)
        if scaler.value != scale:
            say(
                f"{scaler.name} has its lowest scale, {scaler.value:g}, but the state has {scale:g}"
            )
    elif scale != scaler.value:
        say(f"{scaler.name} keeps its static scale {scaler.value:g}, but the state has {scale:g}")
