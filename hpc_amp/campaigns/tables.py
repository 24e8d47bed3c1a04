"""Tables whose cells are text, for terminals, HTML and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The columns whose titles are in `words` contain text, all others numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[str] = field(default=frozenset())


def as_text(table: Table) -> list[str]:
    """The lines of a table, aligned: numbers to the right, text to the left."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    return ["  ".join(_cells(table, line, widths)).rstrip() for line in lines]


def _cells(table: Table, line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        f"{cell:<{width}}" if title in table.words else f"{cell:>{width}}"
        for title, cell, width in zip(table.columns, line, widths, strict=True)
    ]
