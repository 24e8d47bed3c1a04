"""The picture of a sweep: the metric against each parameter, with a panel for each parameter.

Needs matplotlib, which is imported when a picture is drawn. If all values of a parameter are
numbers, its axis is numeric, and logarithmic if they span decades. Otherwise each value has a tick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from hpc_amp.campaigns.figure import make_picture
from hpc_amp.campaigns.points import SEED, Point, short_names
from hpc_amp.sweep.ranking import Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Colour-blind readers can distinguish these colours (Okabe and Ito).
_POINT, _BEST, _LINE = "#0072B2", "#D55E00", "#555555"
_DECADES = 100.0
"""An axis is logarithmic if its largest value divided by its smallest one is at least this."""
_WIDTH, _HEIGHT, _COLUMNS = 3.2, 2.8, 3
_LONGEST_LABEL = 16
_MOST_LABELS = 12


def draw(ranking: Ranking) -> dict[str, bytes]:
    """The picture as `png`, `svg` and `pdf`. Empty if no point is ranked or nothing varies."""
    names = short_names(ranking.sweep.keys)
    # The seed only gets a panel if nothing else varies: every panel shows the scatter.
    shown = [at for at, key in enumerate(ranking.sweep.keys) if key != SEED] or [0][: len(names)]
    if not ranking.ranked or not shown:
        return {}
    columns = min(_COLUMNS, len(shown))
    lines = -(-len(shown) // columns)

    def draw_panels(figure: Figure) -> None:
        panels = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
        for place, (index, axes) in enumerate(zip(shown, panels, strict=False)):
            _draw_panel(axes, ranking, index, names[index])
            if place % _COLUMNS == 0:
                axes.set_ylabel(ranking.metric)
            if place == 0:
                axes.legend(fontsize=7, frameon=False)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        note = ", SYNTHETIC data" if ranking.synthetic else ""
        title = f"{ranking.sweep.name}: {len(ranking.ranked)} points{note}"
        figure.suptitle(title, fontsize=9)

    return make_picture(_WIDTH * columns, _HEIGHT * lines, draw_panels, font_size=8)


def _draw_panel(axes: Axes, ranking: Ranking, index: int, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    texts = [_text(point.status.point, index) for point in ranking.ranked]
    values = [point.value for point in ranking.ranked]
    places = axis_numbers(texts)
    if places is not None:
        axes.plot(*_medians(places, values), lw=1, color=_LINE, label="median")
        if spans_decades(places):
            axes.set_xscale("log")
            _plain_numbers(axes.xaxis)
        elif all(place.is_integer() for place in places):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    else:
        names = list(dict.fromkeys(_text(point, index) for point in ranking.sweep.points))
        places = [float(names.index(text)) for text in texts]
        labels = [text if len(text) <= _LONGEST_LABEL else f"{text[:15]}…" for text in names]
        each = -(-len(names) // _MOST_LABELS)  # more labels would overlap
        shown = range(0, len(names), each)
        axes.set_xticks(shown, labels[::each], rotation=30 if len(names) > 3 else 0)
        axes.set_xlim(-0.5, len(names) - 0.5)
    if spans_decades(values):
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.plot(places, values, ls="", marker="o", ms=4, alpha=0.6, color=_POINT)
    best = values[0]
    if ranking.has_repeats and ranking.sweep.keys[index] != SEED:
        setting = ranking.settings()[0]
        best = setting.mean
        places = [places[ranking.ranked.index(setting.points[0])]]
    axes.plot(places[:1], [best], ls="", marker="*", ms=10, color=_BEST, label="best")
    axes.set_xlabel(name)
    axes.grid(color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)


def _plain_numbers(axis: Axis) -> None:
    """Label an axis with numbers such as `0.01` instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _text(point: Point, index: int) -> str:
    """The value of a parameter as text. A point may use the value of the job file."""
    value = point.values[index]
    return "as in the job" if value is None else value


def axis_numbers(texts: Sequence[str]) -> list[float] | None:
    """The values of a parameter as numbers; None if one of them is not a number."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def spans_decades(values: Sequence[float]) -> bool:
    """Whether the values span decades, so that their axis should be logarithmic."""
    return min(values) > 0 and max(values) / min(values) >= _DECADES


def _medians(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The different places in order, and the median of the values at each place."""
    at: dict[float, list[float]] = {}
    for place, value in zip(places, values, strict=True):
        at.setdefault(place, []).append(value)
    ordered = sorted(at)
    return ordered, [median(at[place]) for place in ordered]
