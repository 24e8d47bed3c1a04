"""Medians, spread, and confidence intervals for a few repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, median, quantiles, stdev

CONFIDENCE = 0.95
# Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
# The standard error of the median of many normal values is sqrt(pi / 2) times that of their mean.
# The median of two values is their mean. For three or more values, this limit is slightly too
# large.
_MEDIAN_FACTOR = math.sqrt(math.pi / 2)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The bounds of the middle half of `values`, by linear interpolation between them."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def student_quantile(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t with `freedom` >= 1 degrees of freedom.

    From a table up to 10, then by the Cornish-Fisher expansion, which is good to 0.001 there
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5).
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def median_half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the median of independent repeats, by Student's t.

    None for a single value.
    """
    half = mean_half_width(values)
    return half if half is None or len(values) == 2 else _MEDIAN_FACTOR * half


def mean_half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean of independent repeats, by Student's t.

    None for a single value.
    """
    count = len(values)
    if count < 2:
        return None
    return student_quantile(count - 1) * stdev(values) / math.sqrt(count)


def relative_half_width(values: Sequence[float]) -> float | None:
    """`median_half_width` divided by the median."""
    half = median_half_width(values)
    return None if half is None else half / median(values)
