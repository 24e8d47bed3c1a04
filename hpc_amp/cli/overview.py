"""The list of runs and campaigns as text: for a terminal, or for other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from hpc_amp.campaigns.listed import RUN, Row
from hpc_amp.cli.screen import Screen, cells_of

_COLOUR_OF = {
    "running": "cyan",
    "pending": "yellow",
    "finished": "green",
    "failed": "red",
    "lost": "red",
    "cancelled": "magenta",
    "checkpointed": "magenta",
    "unknown": "dim",
}
_BAR, _SHORT_BAR = 10, 6
_NAME = 16
"""Longer names are shortened where the terminal is narrow."""
# What is shown depends on the width: the first of these that fits.
_LAYOUTS = (
    ("NAME", "STATE", "AGE", "PROGRESS", "LEFT", "JOB", "ATTEMPT", "SIZE", "FOLDER"),
    ("NAME", "STATE", "AGE", "PROGRESS", "LEFT", "JOB", "ATTEMPT", "SIZE"),
    ("NAME", "STATE", "AGE", "PROGRESS", "LEFT", "JOB", "SIZE"),
    ("NAME", "STATE", "AGE", "DONE", "LEFT", "JOB", "SIZE"),
    ("NAME", "STATE", "AGE", "DONE", "LEFT", "SIZE"),
    ("NAME", "STATE", "AGE", "PART", "LEFT", "SIZE"),
    ("NAME", "STATE", "AGE", "PART", "SIZE"),
    ("NAME", "STATE", "AGE", "SIZE"),
)
_RIGHT = ("AGE", "LEFT", "ATTEMPT", "SIZE")


def as_tabs(rows: Sequence[Row]) -> list[str]:
    """The rows for other programs: the same columns always, separated by tabs, one line each,
    nothing shortened. Unknown values are `-`, and times are in UTC."""
    titles = ("NAME", "KIND", "STATE", "SUBMITTED", "STEP", "STEPS", "ATTEMPT", "JOB", "FOLDER")
    sized = any(row.size is not None for row in rows)
    lines = [(*titles, "REASON", "CAUSE", *(["SIZE"] if sized else []))]
    for row in rows:
        when = row.submitted
        cells = (
            *(row.name, row.kind, row.state),
            None if when is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
            *(row.step, row.total_steps, row.attempt, row.job_id, row.folder, why(row)),
            row.cause,
            *([row.size] if sized else []),
        )
        lines.append(tuple("-" if cell in (None, "") else _plain(str(cell)) for cell in cells))
    return ["\t".join(line) for line in lines]


def as_table(rows: Sequence[Row], screen: Screen) -> list[str]:
    """The rows for a terminal. No line is wider than it."""
    width = screen.width
    empty = {"SIZE"} if all(row.size is None for row in rows) else set()
    empty |= {"LEFT"} if all(row.seconds_to_go is None for row in rows) else set()
    longest = 0
    for layout in _LAYOUTS:
        titles = tuple(title for title in layout if title not in empty)
        cells = [[_CELLS[title](row, screen) for title in titles] for row in rows]
        widths = [
            max(cells_of(title), *(cells_of(line[column]) for line in cells))
            for column, title in enumerate(titles)
        ]
        longest = sum(widths) + 2 * (len(widths) - 1)
        if longest > width and widths[0] > _NAME:
            widths[0] = max(_NAME, widths[0] - (longest - width))
            longest = sum(widths) + 2 * (len(widths) - 1)
        if longest <= width:
            break
    else:
        widths[0] = max(4, widths[0] - (longest - width))
    shown = ["DONE" if title == "PART" else title for title in titles]
    lines = [_line(titles, shown, widths, screen)]
    for row, line in zip(rows, cells, strict=True):
        lines.append(_line(titles, line, widths, screen, _COLOUR_OF.get(row.state, "")))
        reason = row.cause or why(row)
        if reason:
            lines.append(screen.coloured(screen.cut(f"  {_plain(reason)}", width), "dim"))
    return lines


def _line(
    titles: Sequence[str],
    cells: Sequence[str],
    widths: Sequence[int],
    screen: Screen,
    colour: str = "",
) -> str:
    shown, used = [], 0
    for title, cell, width in zip(titles, cells, widths, strict=True):
        text = screen.cut(cell, min(width, max(0, screen.width - used)))
        room = " " * (width - cells_of(text))
        used += width + 2
        coloured = screen.coloured(text, colour) if title in ("STATE", "PROGRESS", "DONE") else text
        shown.append(f"{room}{coloured}" if title in _RIGHT else f"{coloured}{room}")
    return "  ".join(shown).rstrip()


def why(row: Row) -> str:
    """Why a run waits, and when it is expected to start, or how it ended; empty if there is nothing
    to say."""
    if row.kind != RUN:
        others = [(state, n) for state, n in row.counts.items() if n and state != "done"]
        done = [f"{row.step} of {row.total_steps} done"]
        return ", ".join([*done, *(f"{number} {state}" for state, number in others)])
    if row.state == "finished":
        return ""
    if row.start is not None:
        starts = f"expected to start {_when(row.start)}"
        return f"{row.reason}; {starts}" if row.reason else starts
    return row.reason


def _when(start: int) -> str:
    now = time.time()
    today = time.strftime("%Y-%m-%d", time.localtime(now))
    text = time.strftime("%Y-%m-%d %H:%M", time.localtime(start)).removeprefix(f"{today} ")
    return f"at {text}" if start <= now else f"at {text}, in {short(int(start - now))}"


def short(seconds: int) -> str:
    """A time in its largest unit: `45s`, `12m`, `3h`, `2d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size_in_words(size: int) -> str:
    """`512 B`, `1.5 GiB`."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _plain(text: str) -> str:
    if text.isprintable():
        return text
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _name(row: Row, screen: Screen) -> str:
    return _plain(row.name if row.kind == RUN else f"{row.name} ({row.kind})")


def _age(row: Row, screen: Screen) -> str:
    when = row.submitted
    return "-" if when is None else short(max(0, int(time.time()) - when))


def _progress(row: Row, screen: Screen) -> str:
    if row.step is None:
        return "-"
    if not row.total_steps:
        return str(row.step)
    text = f"{row.step}/{row.total_steps}"
    bar = screen.bar((row.step or 0) / row.total_steps, _BAR)
    return f"{bar} {text}" if bar and not row.ended else text


def _done(row: Row, screen: Screen) -> str:
    share = (row.step or 0) / row.total_steps if row.total_steps else 0.0
    bar = screen.bar(share, _SHORT_BAR) if row.total_steps and not row.ended else ""
    return f"{bar} {_part(row, screen)}".strip()


def _part(row: Row, screen: Screen) -> str:
    if row.kind != RUN:
        return f"{row.step}/{row.total_steps}"
    if row.step is None:
        return "-"
    return f"{row.step / row.total_steps:.0%}" if row.total_steps else str(row.step)


def _left(row: Row, screen: Screen) -> str:
    return "-" if row.seconds_to_go is None else short(row.seconds_to_go)


def _folder(row: Row, screen: Screen) -> str:
    here = os.getcwd()
    inside = row.folder.startswith(here.rstrip(os.sep) + os.sep)
    return os.path.relpath(row.folder, here) if inside else row.folder


_CELLS: dict[str, Callable[[Row, Screen], str]] = {
    "NAME": _name,
    "STATE": lambda row, screen: row.state,
    "AGE": _age,
    "PROGRESS": _progress,
    "DONE": _done,
    "PART": _part,
    "LEFT": _left,
    "JOB": lambda row, screen: row.job_id or "-",
    "ATTEMPT": lambda row, screen: str(row.attempt) if row.kind == RUN else "-",
    "SIZE": lambda row, screen: "-" if row.size is None else size_in_words(row.size),
    "FOLDER": _folder,
}
