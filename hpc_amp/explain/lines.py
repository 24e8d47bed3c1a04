"""Reads a log of any size and encoding as lines, and removes the prefixes that launchers add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 2**18
LONGEST = 4096
"""The number of characters at the beginning of a line that are examined."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Prefixes of launchers. The group `rank` is the rank, if the prefix has one. A rank in torch's own
# prefix is always right. The number in torchrun's `default` counts the processes of a node; beside
# it, the number of srun counts nodes. So neither is a rank if both are present.
_TORCH = re.compile(r"\[rank(?P<rank>\d{1,6})\]:\s?")
_LOCAL = re.compile(r"\[(?:default|trainer|worker|train)(?P<rank>\d{1,6})\]:\s?")
_OTHER_LABELS = tuple(
    re.compile(pattern)
    for pattern in (
        # Open MPI (`--tag-output`, and `--output tag` since 5.0), srun and MPICH, PALS.
        r"\[(?:prterun-\S+@)?\d+,(?P<rank>\d{1,6})\](?:<std(?:out|err|diag)>)?:\s?",
        r"\s{0,6}(?P<rank>\d{1,6}):(?:\s(?!\d(?!\d{3}-\d\d-))|$)",
        r"(?:(?:x\d+c\d+\w*|nid\d+)(?:\.\S+)?|[\w-]+(?:\.[\w-]+){2,9}) (?P<rank>\d{1,6}):(?:\s|$)",
        r"\[(?P<rank>\d{1,5})\]:?\s(?=\S)",
        # Ray.
        r"\(\w+ pid=\d+(?:, ip=\S+)?\) ",
    )
)
_LABELS = (_TORCH, _LOCAL, *_OTHER_LABELS)
_TIME = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s+(?:-\s+)?"
    # A logger that writes place and time before each line of a traceback.
    r"|(?:ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:\d\d:\d\d \[?\S+:\d+\] ?"
)
# The margin before the tracebacks in an exception group.
_MARGIN = re.compile(r"\s{2,60}(?:\|(?: |$)|\+ (?=Exception Group Traceback ))")
_PIECES = 6
_RANK_IN_TEXT = re.compile(r"\[Rank (\d{1,6})\]|\brank[ :=]{1,2}(\d{1,6})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    `source` is the name of the log, `text` the line without the prefixes of launchers, and `shown`
    the line as a reader sees it. `number` is None if only the end of the log was read.
    """

    source: str
    number: int | None
    text: str
    shown: str
    rank: int | None
    speaker: str | None = None
    """The prefix of the line. Lines with the same prefix belong together."""

    @property
    def place(self) -> str:
        """`file:line`, or `file` if the number is not known."""
        return self.source if self.number is None else f"{self.source}:{self.number}"


def make_line(source: str, number: int | None, raw: bytes) -> Line:
    """Make a line from its bytes."""
    shown = raw[: 4 * LONGEST].decode("utf-8", errors="replace")[:LONGEST]
    if "\x1b" in shown:
        shown = _ESCAPES.sub("", shown)
    shown = shown.rstrip()
    text, speaker, rank = _without_prefixes(shown)
    if rank is None:
        found = _RANK_IN_TEXT.search(text)
        rank = int(found[1] or found[2]) if found else None
    return Line(source, number, text, shown, rank, speaker)


def _without_prefixes(text: str) -> tuple[str, str | None, int | None]:
    """Split a line into its text, its prefix (or None) and its rank (or None)."""
    speaker = ""
    ranks: dict[re.Pattern[str], int] = {}
    position = 0
    for _ in range(_PIECES):
        found = _TIME.match(text, position)
        if found is None:
            found = next(filter(None, (label.match(text, position) for label in _LABELS)), None)
            if found is None:
                break
            speaker += found[0].strip()
            if "rank" in found.re.groupindex:
                ranks[found.re] = int(found["rank"])
        position = found.end()
    margin = _MARGIN.match(text, position)
    if margin is not None:
        position = margin.end()
    return text[position:], speaker or None, _rank_of(ranks)


def _rank_of(ranks: dict[re.Pattern[str], int]) -> int | None:
    if _TORCH in ranks:
        return ranks[_TORCH]
    if _LOCAL in ranks:
        return ranks[_LOCAL] if len(ranks) == 1 else None
    return next(iter(ranks.values()), None)


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Read a stream in pieces that end with a line. A line that is too long is cut."""
    rest = b""
    while True:
        data = stream.read(BLOCK)
        if not data:
            break
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > 4 * BLOCK:
            # This is hardly a log. Keep only the beginning, to limit the memory.
            rest = data[: 4 * LONGEST]
            continue
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def split_lines(block: bytes) -> list[bytes]:
    """Split a block into its lines."""
    lines = block.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines


def repaints(raw: bytes) -> list[bytes]:
    """Split a line at carriage returns, with which progress bars overwrite a line."""
    if b"\r" not in raw:
        return [raw]
    return [part for part in raw.split(b"\r") if part.strip()] or [b""]
