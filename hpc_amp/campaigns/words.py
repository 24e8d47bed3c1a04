"""Numbers and lists as text, in the same form in every report."""

from __future__ import annotations

from collections.abc import Iterable

NOT_KNOWN = "-"


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def under_way(number: int, noun: str) -> str:
    """`1 run is under way`, `2 runs are under way`."""
    return f"{count(number, noun)} {'is' if number == 1 else 'are'} under way"


def on_nodes(nodes: Iterable[int]) -> str:
    """`on 1 node`, `on 2 and 4 nodes`."""
    numbers = sorted(nodes)
    return f"on {joined([str(n) for n in numbers])} node{'' if numbers == [1] else 's'}"


def percent(share: float | None, digits: int = 0) -> str:
    """`87 %` for 0.87."""
    if share is None:
        return NOT_KNOWN
    rounded = round(100 * share, digits) + 0.0  # the sum is 0.0 for -0.0
    return f"{rounded:.{digits}f} %"


def percent_between(share: float, half_width: float | None) -> str:
    """`87.3 ± 1.2 %` for 0.873 with a half width of 0.012; `87.3 %` if the half width is None or
    0."""
    if not half_width:
        return percent(share, 1)
    return f"{percent(share, 1)[:-2]} ± {percent(half_width, 1)}"


def milliseconds(seconds: float) -> str:
    """`104` for 0.104 seconds, with at least three significant digits."""
    return significant(1000 * seconds)


def significant(value: float) -> str:
    """Three significant digits, or all before the point: `0.0123`, `1.23`, `12.3`, `1,234`."""
    digits = 2
    size = abs(value)
    while size >= 10 and digits > 0:
        size /= 10
        digits -= 1
    while 0 < size < 1 and digits < 8:
        size *= 10
        digits += 1
    return f"{value:,.{digits}f}"


def mebibytes(size: int) -> str:
    """`45.3` for 47.5 million bytes."""
    return significant(size / 2**20)


def joined(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def one_line(text: str) -> str:
    """A text on one line, with control characters replaced by blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
