"""Amdahl's and Gustafson's laws, fitted to what was measured.

Both say that a quantity is a straight line, and ask how much of it is the intercept:

    strong  time of a sample   y(m) = a + b / m    Amdahl, AFIPS 1967
    weak    samples a second   y(m) = a + b m      Gustafson, CACM 31 (1988) 532

m is the number of nodes over the smallest one measured, and s = a / (a + b) is the serial fraction:
what does not get faster, or does not grow, with more nodes. Under Amdahl's law it is a share of the
time on the smallest number of nodes, and speedup stays below 1 / s; under Gustafson's efficiency
stays above 1 - s.

The line is found by least squares over all repeats. Timings scatter in proportion to their size, so
deviations are counted relative to the line (weights 1 / y(m)^2, found in a few rounds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hpc_amp.campaigns.spread import student_quantile

Law = Literal["Amdahl", "Gustafson"]
_ROUNDS = 5
# By this share a point may lie off a law that is said to describe it.
_LARGEST_DEVIATION = 0.1
# By this share, if its uncertainty is not larger, a serial fraction may lie outside of 0 to 1.
_OUTSIDE = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law.

    `half_width` is half the 95 % interval of the serial fraction, None where there are no more
    runs than unknowns. `largest_deviation` is that of the median of a point from the line, as a
    share of the line; with two node counts it says nothing, since a line goes through any two.
    """

    law: Law
    reference_nodes: int
    intercept: float
    slope: float
    serial_fraction: float
    half_width: float | None
    runs: int
    node_counts: int
    largest_deviation: float

    @property
    def verifiable(self) -> bool:
        """Whether there are points enough to see that the law does not hold."""
        return self.node_counts > 2

    @property
    def describes(self) -> bool:
        """Whether all points lie near the line."""
        return self.largest_deviation <= _LARGEST_DEVIATION

    @property
    def contradiction(self) -> str | None:
        """What is so where the serial fraction lies outside of 0 to 1, which the law does not know,
        by more than its uncertainty; None where it does not."""
        margin = max(_OUTSIDE, self.half_width or 0)
        if self.serial_fraction < -margin:
            return "more nodes gain more than is ideal"
        return "more nodes are slower" if self.serial_fraction > 1 + margin else None

    @property
    def holds(self) -> bool:
        """Whether it may be shown as the law of these points, as far as can be seen."""
        return self.describes and self.contradiction is None

    def samples_per_second(self, nodes: float) -> float:
        """What the law says for a number of nodes."""
        times = nodes / self.reference_nodes
        if self.law == "Amdahl":
            return 1 / (self.intercept + self.slope / times)
        return self.intercept + self.slope * times


def fit_amdahl(nodes: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Amdahl's law through runs of strong scaling, one number of each list a run.

    None where all have the same number of nodes, or no such line stays above zero.
    """
    smallest = min(nodes, default=1)
    x = [smallest / n for n in nodes]
    return _fit("Amdahl", nodes, x, [1 / value for value in samples_per_second])


def fit_gustafson(nodes: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Gustafson's law through runs of weak scaling. None as for `fit_amdahl`."""
    smallest = min(nodes, default=1)
    x = [n / smallest for n in nodes]
    return _fit("Gustafson", nodes, x, list(samples_per_second))


def _fit(law: Law, nodes: Sequence[int], x: list[float], y: list[float]) -> Fit | None:
    counts = sorted(set(nodes))
    if len(counts) < 2:
        return None
    line = y
    for _ in range(_ROUNDS):
        weights = [1 / value**2 for value in line]
        intercept, slope = _line(x, y, weights)
        line = [intercept + slope * value for value in x]
        if min(line) <= 0:
            return None
    return Fit(
        law=law,
        reference_nodes=counts[0],
        intercept=intercept,
        slope=slope,
        serial_fraction=intercept / (intercept + slope),
        half_width=_half_width(x, y, line, intercept, slope),
        runs=len(y),
        node_counts=len(counts),
        largest_deviation=_largest_deviation(nodes, y, line),
    )


def _line(x: list[float], y: list[float], weights: list[float]) -> tuple[float, float]:
    """Intercept and slope with the least weighted sum of squares."""
    total = sum(weights)
    x_mean = sum(w * value for w, value in zip(weights, x, strict=True)) / total
    y_mean = sum(w * value for w, value in zip(weights, y, strict=True)) / total
    across = sum(w * (u - x_mean) * (v - y_mean) for w, u, v in zip(weights, x, y, strict=True))
    along = sum(w * (u - x_mean) ** 2 for w, u in zip(weights, x, strict=True))
    slope = across / along
    return y_mean - slope * x_mean, slope


def _half_width(
    x: list[float], y: list[float], line: list[float], intercept: float, slope: float
) -> float | None:
    """Of the serial fraction, from the scatter about the line, to first order in it."""
    freedom = len(y) - 2
    if freedom < 1:
        return None
    weights = [1 / value**2 for value in line]
    scatter = sum(w * (v - f) ** 2 for w, v, f in zip(weights, y, line, strict=True)) / freedom
    # The inverse of the normal equations' matrix, times the scatter, is the covariance.
    s0 = sum(weights)
    s1 = sum(w * u for w, u in zip(weights, x, strict=True))
    s2 = sum(w * u * u for w, u in zip(weights, x, strict=True))
    determinant = s0 * s2 - s1 * s1
    by_intercept = slope / (intercept + slope) ** 2
    by_slope = -intercept / (intercept + slope) ** 2
    variance = (
        by_intercept**2 * s2 - 2 * by_intercept * by_slope * s1 + by_slope**2 * s0
    ) * scatter / determinant  # fmt: skip
    return student_quantile(freedom) * math.sqrt(max(variance, 0.0))


def _largest_deviation(nodes: Sequence[int], y: list[float], line: list[float]) -> float:
    """Over the points: how far the median of a point's runs is from the line, relative to it."""
    points: dict[int, list[float]] = {}
    for count, value, fitted in zip(nodes, y, line, strict=True):
        points.setdefault(count, []).append(value / fitted)
    return max(abs(median(ratios) - 1) for ratios in points.values())
