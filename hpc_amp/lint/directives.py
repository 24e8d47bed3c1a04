"""Which lines of a script each scheduler reads as directives, and how it splits them into words.

Read in the sources of the three schedulers and tried on running ones: Slurm 22.05, OpenPBS 23.06,
Cobalt 1.0.33.

            Slurm                          PBS                         Cobalt
    marker  `#SBATCH` at column 0          `#PBS` after any blanks     `#COBALT ` at column 0
    ends    first line that is no comment  first command               first line without the marker
    quotes  both, `\\` escapes in them too  both, `\\` only outside      ordinary characters
    `#`     outside quotes: a comment      ordinary                    ordinary
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hpc_amp.lint.script import BOM, Script

SchedulerName = Literal["slurm", "pbs", "cobalt"]
SCHEDULERS: tuple[SchedulerName, ...] = ("slurm", "pbs", "cobalt")
MARKERS: dict[SchedulerName, str] = {"slurm": "#SBATCH", "pbs": "#PBS", "cobalt": "#COBALT"}
NAMES: dict[SchedulerName, str] = {"slurm": "Slurm", "pbs": "PBS", "cobalt": "Cobalt"}
# C's isspace(), which is not Python's: a no-break space is a letter to all three.
BLANKS = " \t\v\f\r\n"


@dataclass(frozen=True)
class Word:
    """A word as the scheduler gets it. `quoted` says that quotes were taken off it; `lost` are the
    characters whose backslash vanished inside quotes, where a shell would have kept it;
    `before_comma` is what stood before a quoted piece that holds a comma."""

    text: str
    line: int
    quoted: bool = False
    lost: str = ""
    before_comma: str | None = None


@dataclass(frozen=True)
class Split:
    """A directive split into words, and what went wrong with it."""

    words: tuple[Word, ...]
    unmatched: str | None = None  # the quote that does not end
    comment: str | None = None  # Slurm: what `#` took away
    cut: bool = False  # ... in the middle of a word


@dataclass(frozen=True)
class Directive:
    """A line that a scheduler reads; `text` is what follows the marker."""

    scheduler: SchedulerName
    line: int
    text: str
    split: Split


def slurm_words(text: str, line: int = 1) -> Split:
    """As sbatch splits a directive: either quote groups, a backslash escapes everywhere, an
    unquoted `#` starts a comment, even in the middle of a word."""
    return _quoted_words(text, line, escapes_in_quotes=True, has_comments=True)


def pbs_words(text: str, line: int = 1) -> Split:
    """As PBS Pro's qsub splits a directive: either quote groups and protects everything, a
    backslash escapes outside quotes only, `#` is an ordinary character."""
    return _quoted_words(text, line, escapes_in_quotes=False, has_comments=False)


def _quoted_words(text: str, line: int, *, escapes_in_quotes: bool, has_comments: bool) -> Split:
    words: list[Word] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in BLANKS:
            at += 1
        if at >= end:
            return Split(tuple(words))
        if has_comments and text[at] == "#":
            return Split(tuple(words), comment=text[at:])
        letters: list[str] = []
        quote, quoted, lost = "", False, ""
        before, comma = "", None
        while at < end and (quote or text[at] not in BLANKS):
            letter = text[at]
            if letter == "\\" and (escapes_in_quotes or not quote):
                at += 1
                escaped = text[at : at + 1]
                if not escaped:  # the end of the line: Slurm drops it, PBS would go on
                    break
                letters.append(escaped)
                if quote and escaped not in "$`'\"\\":
                    lost += escaped
            elif letter == quote:
                quote = ""
            elif quote:
                letters.append(letter)
                comma = before if letter == "," else comma
            elif letter in "'\"":
                quote, quoted = letter, True
                before = "".join(letters)
            elif has_comments and letter == "#":
                words.append(Word("".join(letters), line, quoted, lost, comma))
                return Split(tuple(words), comment=text[at:], cut=True)
            else:
                letters.append(letter)
            at += 1
        if quote:
            return Split(tuple(words), unmatched=quote)
        if letters or quoted:
            words.append(Word("".join(letters), line, quoted, lost, comma))


def cobalt_words(text: str, line: int = 1) -> Split:
    """As Cobalt's qsub splits a directive: at white space, and no more."""
    return Split(tuple(Word(word, line) for word in re.findall(f"[^{BLANKS}]+", text)))


SPLIT: dict[SchedulerName, Callable[[str, int], Split]] = {
    "slurm": slurm_words,
    "pbs": pbs_words,
    "cobalt": cobalt_words,
}


@dataclass(frozen=True)
class Header:
    """What one scheduler reads of a script. `end` is the number of the line at which its scan
    stops, one behind the last line if it does not."""

    scheduler: SchedulerName
    directives: tuple[Directive, ...]
    end: int


def _is_marked(line: str, scheduler: SchedulerName) -> bool:
    if scheduler == "cobalt":
        return line.startswith("#COBALT ")
    return (line.lstrip(BLANKS) if scheduler == "pbs" else line).startswith(MARKERS[scheduler])


def _goes_on(line: str, scheduler: SchedulerName) -> bool:
    """Whether the scan goes on over a line that is no directive."""
    if scheduler == "cobalt":
        return False
    bare = line.strip(BLANKS)
    # PBS passes over a line that begins with the shell's empty command, though not an indented one.
    return not bare or bare.startswith("#") or (scheduler == "pbs" and line.startswith(":"))


def ends_with_backslash(text: str, scheduler: SchedulerName) -> bool:
    """Whether a directive's last letter is a backslash that nothing escapes; PBS and Cobalt look
    past blanks behind it."""
    text = text.rstrip("\r" if scheduler == "slurm" else BLANKS)
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def read_header(script: Script, scheduler: SchedulerName) -> Header:
    """The directives that `scheduler` reads. A missing first line is reported by itself; for the
    rest it is taken as given, or there would be nothing more to say."""
    found: list[Directive] = []
    start = 0
    lines = script.lines
    if script.has_bom:
        lines = (lines[0].removeprefix(BOM), *lines[1:])
    if scheduler == "cobalt":
        # Line 1 is the interpreter's, and what it is does not matter.
        start = 0 if lines[0].startswith("#COBALT ") else 1
    marker = "#COBALT " if scheduler == "cobalt" else MARKERS[scheduler]
    joined = 0  # the last line that PBS has joined to one before
    for number, line in enumerate(lines[start:], start + 1):
        if number <= joined:
            continue
        if _is_marked(line, scheduler):
            text = line.partition(marker)[2]
            joined = number
            while scheduler == "pbs" and ends_with_backslash(text, "pbs") and joined < len(lines):
                text = text.rstrip(BLANKS)[:-1] + lines[joined]
                joined += 1
            found.append(Directive(scheduler, number, text, SPLIT[scheduler](text, number)))
        elif not _goes_on(line, scheduler):
            return Header(scheduler, tuple(found), number)
    return Header(scheduler, tuple(found), len(lines) + 1)
