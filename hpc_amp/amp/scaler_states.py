"""The state of loss scalers as apex.amp writes it, and as torch.amp.GradScaler does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_amp.amp.scaler import LossScaler


def apex_state(scalers: Sequence[LossScaler]) -> OrderedDict[str, dict[str, float | int]]:
    """One entry a loss: `loss_scaler0`, `loss_scaler1`, ..., each with `loss_scale` and
    `unskipped`, the clean steps since the scale last moved."""
    return OrderedDict(
        (f"loss_scaler{i}", {"loss_scale": scaler.value, "unskipped": scaler.clean_steps})
        for i, scaler in enumerate(scalers)
    )


def load_apex_state(
    scalers: Sequence[LossScaler], state: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Take over what `apex_state` returned, in its order; the numbers in the keys do not count. Of
    more or fewer entries than losses those take part that have a partner, and `say` is told.
    Raises RuntimeError for other keys, after the rest was taken over."""
    entries = {key: entry for key, entry in state.items() if "loss_scaler" in key}
    if len(entries) != len(scalers):
        say(f"the state to load has {len(entries)} loss scalers, but num_losses is {len(scalers)}")
    for scaler, entry in zip(scalers, entries.values(), strict=False):
        _load(scaler, entry["loss_scale"], entry["unskipped"], say)
    unknown = sorted(state.keys() - entries.keys())
    if unknown:
        raise RuntimeError(f"the state to load has keys that are no loss scalers: {unknown}")


def grad_scaler_state(scaler: LossScaler) -> dict[str, float | int]:
    """The state for `torch.amp.GradScaler.load_state_dict`. Cap and floor are lost: it has none."""
    return {
        "scale": scaler.value,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": scaler.config.growth_interval,
        "_growth_tracker": scaler.clean_steps,
    }


def is_grad_scaler_state(state: Mapping[str, Any]) -> bool:
    """Whether `state` was written by `torch.amp.GradScaler.state_dict`."""
    return "scale" in state and "_growth_tracker" in state


def load_grad_scaler_state(
    scalers: Sequence[LossScaler], state: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Give every loss the scale of a GradScaler, which all of its losses shared. Its factors and
    its interval are not taken over."""
    for scaler in scalers:
        _load(scaler, state["scale"], state["_growth_tracker"], say)


def _load(scaler: LossScaler, scale: float, clean_steps: int, say: Callable[[str], None]) -> None:
    scaler.clean_steps = int(clean_steps)
    if scaler.dynamic:
        # A scale of 0, to which those of apex could fall, would never grow again.
        scaler.value = max(float(scale), scaler.config.min_scale)
        if scaler.value != scale:
            say(f"{scaler.name} has its least scale, {scaler.value:g}; the state has {scale:g}")
    elif scale != scaler.value:
        say(f"{scaler.name} keeps its static scale {scaler.value:g}; the state has {scale:g}")
