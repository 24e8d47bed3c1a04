"""Speedup and parallel efficiency over the number of nodes.

Both are relative to the smallest measured number of nodes, with m = nodes / smallest:

    speedup     samples per second divided by those of the smallest point; with the same global
                batch (strong scaling) this is T(smallest) / T(n)
    efficiency  speedup / m; for weak scaling, this is the samples per second and node divided by
                those of the smallest point
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpc_amp.study.fit import Fit, fit_amdahl, fit_gustafson
from hpc_amp.study.folder import Kind
from hpc_amp.study.points import MeasuredPoint

# The minimum that computing centres such as CSC ask for.
EFFICIENCY_FLOOR = 0.75


@dataclass(frozen=True, slots=True)
class ScaledPoint:
    """A point relative to the smallest one.

    `half_width` is half the 95 % interval of the efficiency, in the same unit. It is None if one of
    the two points has a single run, and 0 for the smallest point.
    """

    point: MeasuredPoint
    speedup: float
    ideal_speedup: float
    efficiency: float
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """The place where efficiency falls below the floor: above it on `last_nodes`, below it on
    `first_nodes`, the next measured number. `nodes` is interpolated, linear in log(nodes)."""

    last_nodes: int
    first_nodes: int
    nodes: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one kind of scaling, at least one, sorted by the number of nodes."""

    kind: Kind
    points: tuple[ScaledPoint, ...]
    fit: Fit | None
    crossing: Crossing | None

    @property
    def reference(self) -> MeasuredPoint:
        """The point on the smallest number of nodes."""
        return self.points[0].point


def make_curve(points: Sequence[MeasuredPoint]) -> Curve:
    """The curve of at least one point; all are of one kind."""
    ordered = sorted(points, key=lambda point: point.nodes)
    scaled = tuple(_scaled(point, ordered[0]) for point in ordered)
    kind = ordered[0].kind
    nodes = [point.nodes for point in ordered for _ in point.runs]
    throughputs = [value for point in ordered for value in point.run_throughputs]
    fit = fit_amdahl if kind == "strong" else fit_gustafson
    return Curve(kind, scaled, fit(nodes, throughputs), _crossing(scaled))


def _scaled(point: MeasuredPoint, reference: MeasuredPoint) -> ScaledPoint:
    ideal = point.nodes / reference.nodes
    speedup = point.samples_per_second / reference.samples_per_second
    half_width = None
    if point is reference:
        half_width = 0.0
    elif point.half_width is not None and reference.half_width is not None:
        # Independent relative errors of a ratio add in squares.
        half_width = speedup / ideal * math.hypot(point.half_width, reference.half_width)
    return ScaledPoint(
        point=point,
        speedup=speedup,
        ideal_speedup=ideal,
        efficiency=speedup / ideal,
        half_width=half_width,
    )


def _crossing(points: Sequence[ScaledPoint]) -> Crossing | None:
    """The first crossing, as the number of nodes grows."""
    for before, after in pairwise(points):
        if after.efficiency < EFFICIENCY_FLOOR <= before.efficiency:
            way = (before.efficiency - EFFICIENCY_FLOOR) / (before.efficiency - after.efficiency)
            first, last = before.point.nodes, after.point.nodes
            return Crossing(first, last, first * (last / first) ** way)
    return None
