"""Numbers of points in short form: `0-3,7` for files, `{0000..0003} 0007` for bash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_MOST = 10**6


def to_text(numbers: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in _runs(numbers)
    )


def from_text(text: str) -> list[int]:
    """The numbers of a text made by `to_text`. Raises ValueError for any other text."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = int(first), int(last if dash else first)
        if end < begin:
            raise ValueError(f"{part} ends before it begins")
        if end - begin > _MOST:
            raise ValueError(f"{part} has too many numbers")
        numbers += range(begin, end + 1)
    return numbers


def to_bash(numbers: Iterable[int]) -> str:
    """Words that bash expands to the numbers in this order, each with four digits."""
    return " ".join(
        f"{first:04d}" if first == last else f"{{{first:04d}..{last:04d}}}"
        for first, last in _runs(numbers)
    )


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and last number of every sequence of consecutive numbers."""
    first: int | None = None
    last = 0
    for number in numbers:
        if first is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            yield first, last
        first = last = number
    if first is not None:
        yield first, last
