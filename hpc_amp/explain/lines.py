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
# What launchers put before a line, the rank as `rank` where they call it so. torchrun's `default`
# and srun's number beside it are not ranks of the program: the one counts on its node, the other
# counts nodes. What torch calls a rank is one, whatever stands before it.
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
    # A logger that puts place and time before each line of a traceback.
    r"|(?:ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:\d\d:\d\d \[?\S+:\d+\] ?"
)
# What Python puts before the tracebacks in a group of exceptions.
_MARGIN = re.compile(r"\s{2,60}(?:\|(?: |$)|\+ (?=Exception Group Traceback ))")
_PIECES = 6
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
    speaker: str | None = None
    """All that launchers put before the line: lines of one speaker belong together."""

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
    text, speaker, rank = _without_prefixes(shown)
    if rank is None:
        found = _RANK_IN_TEXT.search(text)
        rank = int(found[1] or found[2]) if found else None
    return Line(source, number, text, shown, rank, speaker)


def _without_prefixes(text: str) -> tuple[str, str | None, int | None]:
    """What was said, who said it, and the rank."""
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
