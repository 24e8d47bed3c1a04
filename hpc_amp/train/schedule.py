"""The learning rate as a function of the step. It has no state, so a resume cannot change it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from hpc_amp.config.schema import Schedule
from hpc_amp.config.units import parse_step_interval

RateFactor = Callable[[int, int], float]
"""`rate(step, total_steps)`: the learning rate of a step, counted from 0, divided by the peak
rate."""


def rate_factor(schedule: Schedule, step: int, total_steps: int, decay_after: int = 0) -> float:
    """The learning rate of `step`, counted from 0, divided by the peak rate: from 0 to 1.

    Linear warm-up (Goyal et al., 2017), then constant, or steps by `gamma` at the `milestones`, or
    a decay to `final`, either linear or by a cosine (Loshchilov & Hutter, 2017). The decay begins
    after the first `decay_after` steps, or after the warm-up if that is longer. Steps that a loss
    scaler skips count, since the rate depends on the position in the data.
    """
    warmup = round(schedule.warmup * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        return schedule.gamma ** bisect.bisect_right(schedule.milestones, step / total_steps)
    begin = max(warmup, decay_after)
    progress = max(0, step - begin) / max(1, total_steps - begin)
    left = 1 - progress if schedule.name == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return schedule.final + (1 - schedule.final) * left


def decay_after(schedule: Schedule, steps_per_epoch: int) -> int:
    """The number of steps before the decay begins; 0 if the schedule does not say."""
    if schedule.decay_after is None:
        return 0
    interval = parse_step_interval(schedule.decay_after)
    return interval.count * (steps_per_epoch if interval.unit == "epochs" else 1)
