"""The picture of a scaling study: throughput over nodes with the ideal line, and efficiency below.

Needs matplotlib, which is imported when a picture is drawn. Colour-blind readers can distinguish
the colours (Okabe and Ito). Studies also differ in their markers, for grey prints.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hpc_amp.campaigns.figure import make_picture
from hpc_amp.campaigns.words import percent, percent_between
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.compare import labels
from hpc_amp.study.curve import EFFICIENCY_FLOOR, Curve
from hpc_amp.study.folder import Kind
from hpc_amp.study.sentences import conditions, heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From samples per second and a number of nodes to the value that is drawn.
_Value = Callable[[float, float], float]

_COLOURS = ("#0072B2", "#D55E00")
_MARKERS = ("o", "s")
_IDEAL: Any = (0, (6, 3))
_GREY = "#555555"
_FLOOR: Any = (0, (1, 1.5))
# As wide as a column of a proposal, and readable on a phone.
_WIDTH, _HEIGHT, _LINE = 4.6, 5.0, 0.18
_TITLE_LETTERS = 72
# With a smaller ratio of its ends, a logarithmic axis would have at most two of 1, 2, 5, 10, ...
_FEW_TICKS = 8
_TICKS = 8


def draw(kind: Kind, analyses: Sequence[Analysis]) -> dict[str, bytes]:
    """The picture of one kind of scaling, of one study or of two studies, as `png`, `svg` and
    `pdf`.

    Empty if no study has a point of this kind.
    """
    curves = [[c for c in analysis.curves if c.kind == kind] for analysis in analyses]
    if not any(curves):
        return {}
    names = labels(*analyses) if len(analyses) == 2 else (analyses[0].study.name,)

    def draw_curves(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for style, (name, found) in enumerate(zip(names, curves, strict=True)):
            for curve in found:
                _draw_curve(above, curve, name, style, _throughput)
                _draw_curve(below, curve, name, style, _efficiency(curve))
        drawn = [curve for found in curves for curve in found]
        _finish(above, below, drawn)
        _explain(figure, above, drawn)
        _entitle(above, drawn, analyses)

    return make_picture(_WIDTH, _HEIGHT, draw_curves)


def _entitle(axes: Axes, curves: Sequence[Curve], analyses: Sequence[Analysis]) -> None:
    """The title: the kind, the conditions, and whether the data were real. Pictures are often shown
    without their report."""
    sentences = dict.fromkeys(filter(None, map(conditions, analyses)))
    lines = [line for one in sentences for line in textwrap.wrap(one, _TITLE_LETTERS)]
    title = " / ".join(dict.fromkeys(map(heading, curves)))
    axes.set_title(title, fontsize=9, pad=6 + 9 * len(lines))
    axes.annotate(
        "\n".join(lines), (0.5, 1), xycoords="axes fraction", xytext=(0, 3),
        textcoords="offset points", ha="center", va="bottom", fontsize=7, color=_GREY,
    )  # fmt: skip


def _throughput(samples_per_second: float, nodes: float) -> float:
    return samples_per_second


def _efficiency(curve: Curve) -> _Value:
    """From throughput to efficiency relative to the reference of a curve, in percent."""
    reference = curve.reference
    one = reference.samples_per_second / reference.nodes
    return lambda samples_per_second, nodes: 100 * samples_per_second / nodes / one


def _draw_curve(axes: Axes, curve: Curve, label: str, style: int, value: _Value) -> None:
    """Draw markers with the quartiles as bars, hollow markers if runs are missing, the fitted law
    (or lines between the points if no law describes them), and the ideal line."""
    colour, marker = _COLOURS[style], _MARKERS[style]
    law = curve.fit if curve.fit is not None and curve.fit.holds else None
    points = [scaled.point for scaled in curve.points]
    nodes = [point.nodes for point in points]
    middle = [value(point.samples_per_second, point.nodes) for point in points]
    low = [value(point.batch_size / point.step_spread[1], point.nodes) for point in points]
    high = [value(point.batch_size / point.step_spread[0], point.nodes) for point in points]
    # A median of medians may be outside the quartiles over all steps.
    below = [max(at - to, 0) for at, to in zip(middle, low, strict=True)]
    above = [max(to - at, 0) for at, to in zip(middle, high, strict=True)]
    axes.errorbar(
        nodes, middle, yerr=[below, above], color=colour, marker=marker, ms=6,
        lw=0 if law else 1, capsize=3, elinewidth=1, label=label, zorder=3,
    )  # fmt: skip
    hollow = [(p.nodes, m) for p, m in zip(points, middle, strict=True) if not p.complete]
    if hollow:
        x, y = zip(*hollow, strict=True)
        axes.plot(x, y, ls="", marker=marker, ms=6, mfc="white", mec=colour, zorder=4)
    if law is not None:
        steps = [nodes[0] * (nodes[-1] / nodes[0]) ** (i / 60) for i in range(61)]
        fitted = [value(law.samples_per_second(n), n) for n in steps]
        fraction = percent_between(law.serial_fraction, law.half_width)
        name = f"{label}: {law.law}, serial fraction {fraction}"
        axes.plot(steps, fitted, color=colour, lw=1.2, label=name)
    first = curve.reference.samples_per_second / curve.reference.nodes
    ideal = [value(first * n, n) for n in (nodes[0], nodes[-1])]
    axes.plot([nodes[0], nodes[-1]], ideal, color=colour, lw=1, ls=_IDEAL)


def _finish(above: Axes, below: Axes, curves: Sequence[Curve]) -> None:
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        MultipleLocator,
        NullFormatter,
    )

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    nodes = sorted({s.point.nodes for curve in curves for s in curve.points})
    above.set_xscale("log", base=2)
    above.set_yscale("log")
    above.set_ylabel("samples/s")
    low, high = above.get_ylim()
    above.yaxis.set_major_locator(
        LogLocator(base=10, subs=(1, 2, 5)) if high > _FEW_TICKS * low else MaxNLocator(5)
    )
    above.yaxis.set_major_formatter(plain)
    above.yaxis.set_minor_formatter(NullFormatter())
    below.set_ylabel("efficiency, %")
    below.set_xlabel("nodes")
    below.xaxis.set_major_locator(FixedLocator(_ticks(nodes)))
    below.xaxis.set_major_formatter(plain)
    below.xaxis.set_minor_locator(FixedLocator([]))
    floor = 100 * EFFICIENCY_FLOOR
    below.axhline(floor, color=_GREY, lw=1.2, ls=_FLOOR)
    below.yaxis.set_major_locator(MultipleLocator(25))
    below.set_ylim(0, max(112, below.get_ylim()[1]))
    for axes in (above, below):
        axes.grid(color="#dddddd", lw=0.6)
        axes.set_axisbelow(True)
    if nodes[0] == nodes[-1]:
        above.set_xlim(nodes[0] / 2, nodes[0] * 2)


def _explain(figure: Figure, above: Axes, curves: Sequence[Curve]) -> None:
    """Add a legend below the axes."""
    from matplotlib.lines import Line2D

    handles, labels = above.get_legend_handles_labels()
    meanings = {
        "ideal": Line2D([], [], color=_GREY, lw=1, ls=_IDEAL),
        f"efficiency of {percent(EFFICIENCY_FLOOR)}": Line2D([], [], color=_GREY, ls=_FLOOR),
        "middle half of all steps": Line2D([], [], color=_GREY, ls="", marker="|", ms=9),
    }
    if not all(s.point.complete for curve in curves for s in curve.points):
        meanings["some runs are missing"] = Line2D(
            [], [], color=_GREY, ls="", marker="o", mfc="white"
        )
    figure.legend(
        [*handles, *meanings.values()], [*labels, *meanings],
        loc="outside lower left", fontsize=8, frameon=False,
    )  # fmt: skip
    figure.set_figheight(_HEIGHT + _LINE * (len(labels) + len(meanings)))


def _ticks(nodes: Iterable[int]) -> list[int]:
    """The numbers that are far enough from each other on a logarithmic axis."""
    ordered = sorted(nodes)
    gap = math.log(ordered[-1] / ordered[0]) / _TICKS
    kept = ordered[:1]
    for number in ordered[1:]:
        if math.log(number / kept[-1]) >= gap:
            kept.append(number)
    return kept
