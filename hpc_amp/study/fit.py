"""Amdahl's and Gustafson's laws, fitted to measurements.

Each law says that a quantity is linear in a variable x:

    strong  time of a sample   y(m) = a + b / m    Amdahl, AFIPS 1967
    weak    samples a second   y(m) = a + b m      Gustafson, CACM 31 (1988) 532

m is the number of nodes divided by the smallest measured number, and s = a / (a + b) is the serial
fraction: the part that does not get faster, or does not grow, with more nodes. By Amdahl's law it
is a share of the time on the smallest number of nodes, and speedup is less than 1 / s. By
Gustafson's law, efficiency is greater than 1 - s.

The line is fitted by least squares over all repeats. The scatter of times is proportional to their
size, so deviations are relative to the line: the weights are 1 / y(m)^2, found in a few rounds.
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
# The largest relative deviation of a point from a law that describes the points.
_LARGEST_DEVIATION = 0.1
# A serial fraction may be outside of 0 to 1 by this, or by its uncertainty if that is larger.
_OUTSIDE = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law.

    `half_width` is half the 95 % interval of the serial fraction. It is None for two runs, which
    determine the line exactly. `largest_deviation` is the largest relative deviation of the median
    of a point from the line. With two numbers of nodes it is about 0 for any measurements.
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
        """Whether there are enough points to show that the law does not hold."""
        return self.node_counts > 2

    @property
    def describes(self) -> bool:
        """Whether all points are near the line."""
        return self.largest_deviation <= _LARGEST_DEVIATION

    @property
    def contradiction(self) -> str | None:
        """The meaning of a serial fraction that is outside of 0 to 1 by more than its uncertainty,
        which the law does not allow; None for any other."""
        margin = max(_OUTSIDE, self.half_width or 0)
        if self.serial_fraction < -margin:
            return "more nodes gain more than is ideal"
        if self.serial_fraction > 1 + margin:
            return "more nodes are slower"
        return None

    @property
    def holds(self) -> bool:
        """Whether the law describes the points and nothing contradicts it."""
        return self.describes and self.contradiction is None

    def samples_per_second(self, nodes: float) -> float:
        """The samples per second that the law predicts for a number of nodes."""
        times = nodes / self.reference_nodes
        if self.law == "Amdahl":
            return 1 / (self.intercept + self.slope / times)
        return self.intercept + self.slope * times


def fit_amdahl(nodes: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Fit Amdahl's law to runs of strong scaling. Each list has one number for each run.

    Returns None if all runs have the same number of nodes, or if the fitted line is not positive.
    """
    smallest = min(nodes, default=1)
    x = [smallest / n for n in nodes]
    return _fit("Amdahl", nodes, x, [1 / value for value in samples_per_second])


def fit_gustafson(nodes: Sequence[int], samples_per_second: Sequence[float]) -> Fit | None:
    """Fit Gustafson's law to runs of weak scaling. Returns None as `fit_amdahl` does."""
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
    """Intercept and slope of the line with the smallest weighted sum of squares."""
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
    """Half the 95 % interval of the serial fraction, from the scatter around the line, to first
    order."""
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
    """The largest relative deviation of the median of a point's runs from the line."""
    points: dict[int, list[float]] = {}
    for count, value, fitted in zip(nodes, y, line, strict=True):
        points.setdefault(count, []).append(value / fitted)
    return max(abs(median(ratios) - 1) for ratios in points.values())
