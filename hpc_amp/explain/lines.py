"""A log as lines: whatever its size, its encoding and what a launcher wrote before each line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 2**18
LONGEST = 4096
"""Characters of a line that are looked at. What matters stands at its beginning."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # What srun, mpirun, torchrun and mpiexec call a rank.
        r"\[rank(?P<rank>\d{1,6})\]:\s?",
        r"\[\d+,(?P<rank>\d{1,6})\](?:<std(?:out|err|diag)>)?:\s?",
        r"\[(?:default|trainer|worker|train)(?P<rank>\d{1,6})\]:\s?",
        r"\s{0,6}(?P<rank>\d{1,6}):\s(?!\d)",
        r"(?:x\d+c\d+\w*|nid\d+)(?:\.\S+)? (?P<rank>\d{1,6}):\s",
        r"\[(?P<rank>\d{1,5})\]:?\s(?=\S)",
        # Times.
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+"
        r"(?:-\s+)?",
    )
)
_RANK_IN_TEXT = re.compile(r"\[Rank (\d{1,6})\]|\brank[ :=]{1,2}(\d{1,6})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `text` is what was said, without what a launcher put before it; `shown` is the line
    as a reader sees it. `number` is None where only the end of a log was read."""

    source: str
    number: int | None
    text: str
    shown: str
    rank: int | None
    speaker: int | None = None
    """The rank as far as a launcher put it before the line: such lines do not get mixed up."""

    @property
    def place(self) -> str:
        """`file:line`, as far as it is known."""
        return self.source if self.number is None else f"{self.source}:{self.number}"


def make_line(source: str, number: int | None, raw: bytes) -> Line:
    """A line of a log from its bytes."""
    shown = raw[: 4 * LONGEST].decode("utf-8", errors="replace")[:LONGEST]
    if "\x1b" in shown:
        shown = _ESCAPES.sub("", shown)
    shown = shown.rstrip()
    text, speaker = _without_prefixes(shown)
    rank = speaker
    if rank is None:
        found = _RANK_IN_TEXT.search(text)
        rank = int(found[1] or found[2]) if found else None
    return Line(source, number, text, shown, rank, speaker)


def _without_prefixes(text: str) -> tuple[str, int | None]:
    rank = None
    position = 0
    for _ in range(4):
        for pattern in _PREFIXES:
            found = pattern.match(text, position)
            if found:
                position = found.end()
                if rank is None and "rank" in pattern.groupindex:
                    rank = int(found["rank"])
                break
        else:
            break
    return text[position:], rank


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """A stream in pieces that end where a line ends. A line without end is cut."""
    rest = b""
    while True:
        data = stream.read(BLOCK)
        if not data:
            break
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > 4 * BLOCK:
            # Gigabytes without a line feed are no log; what is kept of them stays bounded.
            rest = data[: 4 * LONGEST]
            continue
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def split_lines(block: bytes) -> list[bytes]:
    """The lines of a block. A progress bar repaints its line: what was last on it counts, and what
    an error may have left in front of it."""
    lines = block.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines


def repaints(raw: bytes) -> list[bytes]:
    """The states of a line that carriage returns painted over; most lines have one."""
    if b"\r" not in raw:
        return [raw]
    return [part for part in raw.split(b"\r") if part.strip()] or [b""]
