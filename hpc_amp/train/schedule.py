"""The learning rate as a function of the step: nothing to save, the same after every resume."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from hpc_amp.config.schema import Schedule

RateFactor = Callable[[int, int], float]
"""The learning rate of a step (from 0 on) of so many, as a part of the peak rate."""


def rate_factor(schedule: Schedule, step: int, total_steps: int) -> float:
    """The learning rate of `step` (counted from 0) as a part of the peak rate.

    Linear warm-up (Goyal et al. 2017), then cosine to `final` (Loshchilov & Hutter 2017), steps, or
    constant. Steps that a loss scaler skips count: the rate depends on the position in the data.
    """
    warmup = round(schedule.warmup * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        return schedule.gamma ** bisect.bisect_right(schedule.milestones, step / total_steps)
    progress = (step - warmup) / max(1, total_steps - warmup)
    return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * progress))
