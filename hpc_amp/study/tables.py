"""The tables of a report."""

from __future__ import annotations

from collections import Counter

from hpc_amp.campaigns.tables import Table
from hpc_amp.campaigns.words import (
    NOT_KNOWN,
    mebibytes,
    milliseconds,
    one_line,
    percent,
    percent_between,
    significant,
)
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.curve import Curve, ScaledPoint
from hpc_amp.study.folder import Kind


def points_table(analysis: Analysis, kind: Kind) -> Table:
    """The measurements on each planned number of nodes."""
    planned = Counter(run.planned.nodes for run in analysis.runs if run.planned.kind == kind)
    curves = [curve for curve in analysis.curves if curve.kind == kind]
    measured = {s.point.nodes: s for curve in curves for s in curve.points}
    columns = (
        "nodes", "ranks", "runs", "step ms", "middle half", "samples/s", "speedup", "efficiency",
    )  # fmt: skip
    rows = []
    for nodes in sorted(planned):
        if nodes in measured:
            rows.append(_point_row(measured[nodes], planned[nodes]))
        else:
            unknown = (NOT_KNOWN,) * (len(columns) - 3)
            rows.append((f"{nodes:,}", NOT_KNOWN, f"0/{planned[nodes]}", *unknown))
    return Table(columns, tuple(rows))


def _point_row(scaled: ScaledPoint, planned: int) -> tuple[str, ...]:
    point = scaled.point
    low, high = point.step_spread
    return (
        f"{point.nodes:,}",
        f"{point.world_size:,}",
        f"{len(point.runs)}/{planned}",
        *(
            (milliseconds(point.step_seconds), f"{milliseconds(low)}-{milliseconds(high)}")
            if point.first.has_batch
            else (NOT_KNOWN, NOT_KNOWN)
        ),
        significant(point.samples_per_second),
        f"{scaled.speedup:.2f}",
        percent_between(scaled.efficiency, scaled.half_width),
    )


def shares_table(curve: Curve) -> Table:
    """The parts of the time of a step, and the slowest rank."""
    rows = []
    for scaled in curve.points:
        shares, slow = scaled.point.shares, scaled.point.slowest
        rows.append(
            (
                f"{scaled.point.nodes:,}",
                percent(shares.compute),
                percent(shares.communication),
                percent(shares.data_wait),
                NOT_KNOWN
                if slow is None
                else f"+{percent(slow.excess)}: {slow.rank} on {slow.host}",
            )
        )
    columns = ("nodes", "compute", "communication", "data wait", "slowest rank")
    return Table(columns, tuple(rows), words=frozenset({"slowest rank"}))


def allreduce_table(curve: Curve) -> Table | None:
    """The all-reduces of the points; None if there are none."""
    rows = []
    for scaled in curve.points:
        point, measured = scaled.point, scaled.point.allreduce
        if measured is None:
            continue
        bandwidth = measured.bus_bandwidth
        rows.append(
            (
                f"{point.nodes:,}",
                f"{point.world_size:,}",
                mebibytes(measured.bytes),
                milliseconds(measured.seconds),
                f"{milliseconds(measured.spread[0])}-{milliseconds(measured.spread[1])}",
                NOT_KNOWN if bandwidth is None else significant(bandwidth / 1e9),
                percent(measured.seconds / point.step_seconds),
            )
        )
    columns = ("nodes", "ranks", "MiB", "ms", "middle half", "bus GB/s", "of a step")
    return Table(columns, tuple(rows)) if rows else None


def unmeasured_table(analysis: Analysis) -> Table | None:
    """The runs that are not measured on all ranks; None if all are."""
    rows = [
        (
            run.planned.label,
            run.state,
            one_line(run.reason) or NOT_KNOWN,
            one_line(str(run.run_dir or NOT_KNOWN)),
        )
        for run in analysis.unmeasured
    ]
    columns = ("run", "state", "reason", "run directory")
    return Table(columns, tuple(rows), words=frozenset(columns)) if rows else None
