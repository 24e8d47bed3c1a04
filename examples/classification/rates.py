"""The course of the learning rate over a run, as a part of its peak."""

from __future__ import annotations

import argparse
import bisect
import math
from collections.abc import Callable

Rate = Callable[[int, int], float]


def rate_of(flags: argparse.Namespace) -> Rate:
    """The rate of a step (from 0 on) of so many, by `--lr-policy` and its flags.

    It rises in a line over the first `--warmup-length` epochs. The policies count epochs, and parts
    of one, from the end of the warm-up; `--lr-steps` count from the beginning of the run.
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
