"""The picture of a benchmark: throughput and memory of each setting.

Needs matplotlib, which is imported when a picture is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.bench.comparison import Comparison
from hpc_amp.bench.sentences import conditions, is_of_cpu
from hpc_amp.campaigns.figure import make_picture
from hpc_amp.campaigns.words import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPEED, _MEMORY, _GREY = "#0072B2", "#D55E00", "#555555"


def draw(comparison: Comparison) -> dict[str, bytes]:
    """The picture as `png`, `svg` and `pdf`. The comparison must have at least one row."""

    def draw_both(figure: Figure) -> None:
        if comparison.is_reported:
            _draw_speed(figure.subplots(), comparison)
        else:
            left, right = figure.subplots(1, 2)
            _draw_speed(left, comparison)
            _draw_memory(right, comparison)
        _write_conditions(figure, comparison)

    return make_picture(6.4, 3.4, draw_both)


def _draw_speed(axes: Axes, comparison: Comparison) -> None:
    rows = comparison.rows
    speed = [row.samples_per_second for row in rows]
    batches = [row.runs[0].ranks[0].batch_size for row in rows]
    # A median of medians may be outside the quartiles over all steps.
    pairs = list(zip(rows, batches, speed, strict=True))
    below = [max(value - size / row.step_spread[1], 0) for row, size, value in pairs]
    above = [max(size / row.step_spread[0] - value, 0) for row, size, value in pairs]
    bars = axes.bar(
        [row.label for row in rows], speed, yerr=[below, above], color=_SPEED, capsize=3,
        error_kw={"elinewidth": 1},
    )  # fmt: skip
    labels = [
        significant(row.samples_per_second)
        + (f"\n{row.speedup:.2f}x" if row.speedup is not None else "")
        for row in rows
    ]
    axes.bar_label(bars, labels, padding=2, fontsize=8)
    axes.set_ylabel("samples/s")
    axes.margins(y=0.2)
    axes.set_title("bars: middle half of all steps", fontsize=7.5, color=_GREY)


def _draw_memory(axes: Axes, comparison: Comparison) -> None:
    rows = comparison.rows
    memory = [(row.peak_memory or 0) / 2**20 for row in rows]
    bars = axes.bar([row.label for row in rows], memory, color=_MEMORY)
    axes.bar_label(bars, [significant(value) for value in memory], padding=2, fontsize=8)
    axes.set_ylabel("peak memory, MiB")
    axes.margins(y=0.2)
    what = "of the whole process" if is_of_cpu(comparison) else "allocated by torch"
    axes.set_title(what, fontsize=7.5, color=_GREY)


def _write_conditions(figure: Figure, comparison: Comparison) -> None:
    title = comparison.campaign.name
    if is_of_cpu(comparison):
        title += " on a CPU: says nothing about a GPU"
    figure.suptitle(title, fontsize=9)
    figure.supxlabel("\n".join(conditions(comparison)), fontsize=6.5, color=_GREY)
