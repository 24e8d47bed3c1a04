"""Speedup and parallel efficiency over the number of nodes.

Both count from the smallest number of nodes that was measured, m = nodes / smallest:

    speedup     samples per second over those of the smallest point; with the same global batch
                (strong scaling) this is T(smallest) / T(n)
    efficiency  speedup / m: for weak scaling, the samples per second and node over those of the
                smallest point
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpc_amp.study.fit import Fit, fit_amdahl, fit_gustafson
from hpc_amp.study.folder import Kind
from hpc_amp.study.points import MeasuredPoint

# What computing centres ask for at least (CSC and others): below it, nodes are wasted.
EFFICIENCY_FLOOR = 0.75


@dataclass(frozen=True, slots=True)
class ScaledPoint:
    """A point against the smallest one.

    `half_width` is half the 95 % interval of the efficiency, in the same unit; None where one of
    the two points has a single run, and 0 for the smallest point itself.
    """

    point: MeasuredPoint
    speedup: float
    ideal_speedup: float
    efficiency: float
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where efficiency falls under the floor: above it on `last_nodes`, under it on `first_nodes`,
    the next number measured. `nodes` lies between them, by a straight line over log(nodes)."""

    last_nodes: int
    first_nodes: int
    nodes: float


@dataclass(frozen=True, slots=True)
class Curve:
    """All points of one kind, smallest first; at least one."""

    kind: Kind
    points: tuple[ScaledPoint, ...]
    fit: Fit | None
    crossing: Crossing | None

    @property
    def reference(self) -> MeasuredPoint:
        """The point that the others are compared with."""
        return self.points[0].point


def make_curve(points: Sequence[MeasuredPoint]) -> Curve:
    """The curve through at least one point; all of one kind."""
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
    """The first one, as nodes grow."""
    for before, after in pairwise(points):
        if after.efficiency < EFFICIENCY_FLOOR <= before.efficiency:
            way = (before.efficiency - EFFICIENCY_FLOOR) / (before.efficiency - after.efficiency)
            first, last = before.point.nodes, after.point.nodes
            return Crossing(first, last, first * (last / first) ** way)
    return None
