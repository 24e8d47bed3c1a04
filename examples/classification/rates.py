"""The learning rate during a run, divided by its peak."""

from __future__ import annotations

import argparse
import bisect
import math
from collections.abc import Callable

Rate = Callable[[int, int], float]


def rate_of(flags: argparse.Namespace) -> Rate:
    """A learning rate schedule by `--lr-policy` and its flags: a function of the step, counted from
    0, and the number of steps.

    The rate rises linearly during the first `--warmup-length` epochs. Policies count epochs, and
    fractions of epochs, from the end of the warm-up. `--lr-steps` count from the beginning of the
    run.
    """

    def rate(step: int, steps: int) -> float:
        epoch = step * flags.epochs / steps
        if epoch < flags.warmup_length:
            per_epoch = steps / flags.epochs
            return (step + 1) / (flags.warmup_length * per_epoch)
        if flags.lr_policy == "constant_lr":
            return 1.0
        if flags.lr_policy == "multistep_lr":
            return flags.lr_gamma ** bisect.bisect_right(flags.lr_steps, epoch)
        passed = epoch - flags.warmup_length
        if flags.lr_policy == "normal_lr":
            return math.exp(-(passed**2) / flags.scale_gausslr)
        length = flags.scale_coslr * max(1, flags.epochs - flags.warmup_length)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, passed / length)))

    return rate
