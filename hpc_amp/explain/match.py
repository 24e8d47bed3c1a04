"""Reads a log once and finds what failed first.

When a rank fails, the other ranks fail too, and each of them prints errors. So the first line that
looks like an error is often not the important one. Entries have levels (`failures.LEVELS`). The
verdict is, in this order: the earliest cause or unexplained error, else a likely cause, else a
symptom, else the first line that looks like an error. An error does not count if training continues
after it, or if a new attempt begins.

Some entries only repeat the message of a program (`otherwise`). They are tried on lines that no
other entry matches, and other entries of the same level are preferred.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from hpc_amp.explain.errors import Error, Errors
from hpc_amp.explain.failures import Failure
from hpc_amp.explain.lines import LONGEST, Line, blocks, make_line, repaints, split_lines

_ATTEMPT = re.compile(r"^attempt \d+ of job \S+: \d+ rank")
_ENDED_WELL = re.compile(r"^attempt \d+ ended: (?:finished|checkpointed) \(status")
_PROGRESS = re.compile(
    r"\b(?:steps?|iter(?:ation)?s?|epochs?|batch|global_step)\b\W{0,3}\d+.*\b(?:loss|lr|acc\w*"
    r"|eta|grad_?norm|img/s|images/s|samples/s|tok(?:ens)?/s|s/it|it/s)\b"
    r"|\d+/\d+ \[\d+:\d\d(?::\d\d)?<",
    re.IGNORECASE,
)
_FRAME = re.compile(r"\s+File \"")
# After so many lines of progress following an error, the program has survived the error.
_SURVIVED = 3
# A warning may not end the run.
_WARNING = re.compile(r"\b\w*Warning: |^\[?W\d{3,4} |^\[W ?\d|^WARNING\b|\bWARNING: ")
# Lines that differ only in these numbers have the same shape. If no entry matches a shape, it is
# not examined again, which makes long logs fast. Not included are small whole numbers (an exit
# status), a value of 0.0, and addresses of this machine (127.0.0.1), because they matter.
_NUMBERS = re.compile(
    rb"^\s*\d{1,6}(?=: )|\[rank\d+\]|\[\d+,\d+\]"
    rb"|(?<![\d.])(?!0\.0+\b|127\.)\d+(?:[.,:/]\d+)+%?|\d{4,}|\d+%"
)
_SHAPES = 8192
# torch prints the message of NCCL on the next line after this one. The next line may also be
# missing, or be this line again or another error.
_ANNOUNCED = "Last error:"
_NO_WORDS = re.compile(
    r"^(?:\s|$|Last error:|Exception raised from |C\+\+ |nccl\w+: |\S*Error: )|Traceback"
)


@dataclass(frozen=True, slots=True)
class Match:
    """A line that an entry matches, and the groups that its pattern captured."""

    failure: Failure
    line: Line
    captured: dict[str, str]
    level: str
    order: int


@dataclass(slots=True)
class Verdict:
    """The result for a log: a known failure, or the first unexplained error, or neither."""

    finding: Match | None = None
    error: Line | None = None
    led_to: Line | None = None
    """The exception that ended the program, if it is not `error`."""
    words: Line | None = None
    """With a symptom: the first line that looks like an error and that no entry matches."""
    sign: Line | None = None
    """The line of a launcher that reports the failure, if nothing else does."""
    noticed: list[Match] = field(default_factory=list)
    """Other matches that may help."""
    ended_well: bool = False
    """Whether the job ended normally."""


class Scan:
    """Searches for known failures in the lines of one log."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        failures = tuple(failures)
        self._failures = tuple(f for f in failures if not f.otherwise)
        self._otherwise = tuple(f for f in failures if f.otherwise)
        self._conditions = tuple(f for f in failures if f.also or f.without)
        self._seen: dict[str, set[int]] = {f.id: set() for f in self._conditions}
        self._spoiled: set[str] = set()
        self._errors = Errors()
        self._active: dict[str, list[Match]] = {}
        self._survived: dict[str, Match] = {}
        self._survived_error: Line | None = None
        self._announced: set[str | None] = set()
        self._progress = 0
        self._order = 0
        self._hints: dict[str, list[Match]] = {}
        self._first_sign: Line | None = None
        self._boring: set[bytes] = set()
        self._ended_well = False

    # ---- reading -------------------------------------------------------------------------------

    def read(self, stream: BinaryIO, source: str, *, first_number: int | None = 1) -> None:
        """Read all lines of a stream.

        `source` is the name of the log. `first_number` is the number of the first line, or None if
        the stream does not start at the beginning of the file.
        """
        number = first_number
        for block in blocks(stream):
            for raw in split_lines(block):
                shape = _NUMBERS.sub(b"#", raw[: 2 * LONGEST])
                if shape not in self._boring or self._announced:
                    self._take_states(source, number, raw, shape)
                elif self._pending and _PROGRESS.search(raw[:LONGEST].decode(errors="replace")):
                    self._note_progress()
                if number is not None:
                    number += 1

    def _take_states(self, source: str, number: int | None, raw: bytes, shape: bytes) -> None:
        taken = [self.take(make_line(source, number, state)) for state in repaints(raw)]
        if not any(taken):
            if len(self._boring) >= _SHAPES:
                self._boring.clear()
            self._boring.add(shape)

    @property
    def _pending(self) -> bool:
        """Whether there is an error so far, which lines of progress would cancel."""
        return bool(self._active or self._errors.found)

    def take(self, line: Line) -> bool:
        """Read one line. Returns whether it changed anything."""
        text = line.text
        self._order += 1
        if _ATTEMPT.match(text):
            self._start_again()
            return True
        if _ENDED_WELL.match(text):
            self._start_again()
            self._ended_well = True
            return True
        if text == _ANNOUNCED:
            self._announced.add(line.speaker)
            return True
        if line.speaker in self._announced:
            self._announced.discard(line.speaker)
            if not _NO_WORDS.search(text):
                line = replace(line, text=f"{_ANNOUNCED} {text}")
        error, may_match = self._errors.look(line, self._order)
        if not may_match:
            if _FRAME.match(text):
                self._note_conditions(text)
            return True
        if self._pending and _PROGRESS.search(text):
            self._note_progress()
        if error is not None and error.harmless:
            return True
        return self._match(line, error) or error is not None

    def _match(self, line: Line, error: Error | None) -> bool:
        """Match a line with all entries. Returns whether that changed anything."""
        news = self._note_conditions(line.text)
        fitting = _fitting(self._failures, line) or _fitting(self._otherwise, line)
        if fitting and self._errors.first_words is line:
            self._errors.first_words = None
        for failure, found in fitting:
            level = failure.level
            if level == "cause" and error is None and _WARNING.search(line.text):
                level = "likely"
            if error is not None and level != "hint":
                error.explained = True
            if level == "noise":
                news = self._note_sign(line) or news
                continue
            kept = (self._hints if level == "hint" else self._active).setdefault(failure.id, [])
            surer = bool(kept) and level == "cause" != kept[-1].level
            if len(kept) < failure.times or surer:
                captured = {key: value or "" for key, value in found.groupdict().items()}
                # A chained traceback is one error: a match in it has the order of its first line.
                order = self._order if error is None else error.order
                finding = Match(failure, line, captured, level, order)
                if surer:
                    # The same match was only a warning before.
                    kept[-1] = finding
                else:
                    kept.append(finding)
                news = True
        return news

    def _note_conditions(self, text: str) -> bool:
        """Note the conditions (`also`, `without`) of entries that this line fulfils.

        A line fulfils only one `also` condition of an entry. So an entry with the same condition
        twice needs two lines. Returns whether anything changed.
        """
        news = False
        for failure in self._conditions:
            for index, pattern in enumerate(failure.also):
                if index not in self._seen[failure.id] and pattern.search(text):
                    self._seen[failure.id].add(index)
                    news = True
                    break
            if failure.id not in self._spoiled and any(p.search(text) for p in failure.without):
                self._spoiled.add(failure.id)
                news = True
        return news

    def _note_sign(self, line: Line) -> bool:
        """Note the line of a launcher that reports a failure. Returns whether it is the first."""
        if self._first_sign is not None:
            return False
        self._first_sign = line
        self._ended_well = False
        return True

    def _note_progress(self) -> None:
        self._progress += 1
        if self._progress < _SURVIVED:
            return
        self._progress = 0
        for name, kept in self._active.items():
            if len(kept) < kept[0].failure.times:
                continue
            self._survived.setdefault(name, kept[0])
        error = self._errors.unexplained()
        if error is not None and self._survived_error is None:
            self._survived_error = error.line
        self._active.clear()
        self._errors.forget()
        self._boring.clear()
        self._first_sign = None

    def _start_again(self) -> None:
        self._active.clear()
        self._survived.clear()
        self._survived_error = None
        self._announced.clear()
        self._errors.forget()
        self._boring.clear()
        self._seen = {f.id: set() for f in self._conditions}
        self._spoiled.clear()
        self._hints.clear()
        self._progress = 0
        self._first_sign = None
        self._ended_well = False

    # ---- judging -------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return the verdict for the lines so far."""
        active = self._complete(self._active)
        survived = [f for f in self._survived.values() if self._holds(f.failure)]
        if self._ended_well:
            return Verdict(ended_well=True)
        unexplained = self._errors.unexplained()
        verdict = _judge(active, unexplained)
        if verdict.finding is not None and verdict.finding.level == "symptom":
            verdict.words = self._errors.first_words
        if verdict.finding is None and verdict.error is None and self._first_sign:
            # Something failed, but all errors came before lines of progress. The lines of progress
            # may have been delayed in a buffer.
            verdict = _judge(survived, None)
            if verdict.finding is None:
                verdict.error = self._survived_error
        if verdict.finding is None and verdict.error is None:
            verdict.error = self._errors.first_words
            verdict.sign = self._first_sign
        if unexplained is not None and verdict.finding is None:
            # Likely causes before an unknown error may have led to it, and causes after it may
            # follow from it. They are shown, but not named as the cause.
            for found in sorted(active, key=_when):
                level = "likely" if found.order < unexplained.order else "cause"
                if found.level == level:
                    verdict.noticed.append(found)
        elif verdict.finding is None or verdict.finding.level == "symptom":
            verdict.noticed = sorted(self._complete(self._hints), key=_when)
        elif verdict.finding.level == "cause":
            # Earlier likely causes may explain it: a module that does not exist, before the failure
            # of the line in job.setup that loads it.
            verdict.noticed = [
                found
                for found in sorted(active, key=_when)
                if found.level == "likely" and found.order < verdict.finding.order
            ]
        return verdict

    def _complete(self, found: dict[str, list[Match]]) -> list[Match]:
        """The matches of entries that matched often enough and whose conditions hold."""
        return [
            kept[0]
            for kept in found.values()
            if len(kept) >= kept[0].failure.times and self._holds(kept[0].failure)
        ]

    def _holds(self, failure: Failure) -> bool:
        if failure.id in self._spoiled:
            return False
        return len(self._seen.get(failure.id, ())) == len(failure.also)


def _when(finding: Match) -> int:
    return finding.order


def _judge(findings: list[Match], unexplained: Error | None) -> Verdict:
    causes = sorted((f for f in findings if f.level == "cause"), key=_when)
    if unexplained is not None and (not causes or unexplained.order < causes[0].order):
        last = unexplained.last
        return Verdict(error=unexplained.line, led_to=None if last is unexplained.line else last)
    for level in ("cause", "likely", "symptom"):
        fitting = [f for f in findings if f.level == level]
        if fitting:
            # For the same line, an entry with conditions on other lines is first.
            return Verdict(
                finding=min(
                    fitting, key=lambda f: (f.failure.otherwise, f.order, not f.failure.also)
                )
            )
    return Verdict()


def _fitting(failures: Iterable[Failure], line: Line) -> list[tuple[Failure, re.Match[str]]]:
    """The entries that match a line, each with its match."""
    matches = ((failure, failure.match(line.text)) for failure in failures)
    return [(failure, found) for failure, found in matches if found is not None]
