"""Reads a log once and tells what failed first.

A rank that fails takes the others with it, and each of them says so: the first line that sounds
like an error is seldom the one that matters. Entries therefore have levels (see
`failures.LEVELS`), and the order is: the earliest cause or unexplained error; else what is likely;
else a symptom, named as one; else the first line that sounds like an error. An error after which
training goes on was survived, and a new attempt makes a new start.

Some entries only repeat what a program said of its failure (`otherwise`): they look at lines that
no other entry knows, and an entry of the same level that knows its line counts before them.
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
# So many lines of progress after an error show that the program went on.
_SURVIVED = 3
# A warning tells of something that need not be the end.
_WARNING = re.compile(r"\b\w*Warning: |^\[?W\d{3,4} |^\[W ?\d|^WARNING\b|\bWARNING: ")
# Lines that differ only in such numbers are of one shape. A long log has few shapes, and what no
# entry knows once, none knows the second time. Small whole numbers stay: an exit status counts.
# A number that fell to 0.0 tells something, and so does an address of this machine (127.0.0.1).
_NUMBERS = re.compile(
    rb"^\s*\d{1,6}(?=: )|\[rank\d+\]|\[\d+,\d+\]"
    rb"|(?<![\d.])(?!0\.0+\b|127\.)\d+(?:[.,:/]\d+)+%?|\d{4,}|\d+%"
)
_SHAPES = 8192
# torch gives NCCL's own words on a line of their own, below this one. Where nothing follows, this
# does, or the next error.
_ANNOUNCED = "Last error:"
_NO_WORDS = re.compile(
    r"^(?:\s|$|Last error:|Exception raised from |C\+\+ |nccl\w+: |\S*Error: )|Traceback"
)


@dataclass(frozen=True, slots=True)
class Match:
    """A line that an entry knows."""

    failure: Failure
    line: Line
    captured: dict[str, str]
    level: str
    order: int


@dataclass(slots=True)
class Verdict:
    """What a log says: a finding, or the first error that nothing explains, or neither."""

    finding: Match | None = None
    error: Line | None = None
    led_to: Line | None = None
    """What the program died of in the end, where that is another exception than `error`."""
    words: Line | None = None
    """Beside a symptom: the first line that sounds like an error and that nothing knows."""
    sign: Line | None = None
    """What a launcher said of the failure, where nobody said more."""
    noticed: list[Match] = field(default_factory=list)
    ended_well: bool = False


class Scan:
    """Looks for the known failures in the lines of one log."""

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
        """Take all lines of a stream. `first_number` is None where it does not begin the file."""
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
        """Whether there is an error that progress would show to have been survived."""
        return bool(self._active or self._errors.found)

    def take(self, line: Line) -> bool:
        """Take one line; returns whether it said anything."""
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
        """Let all entries look at a line. Returns whether one learned anything new."""
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
                # A chained traceback is one event: what explains a part counts from its start.
                order = self._order if error is None else error.order
                finding = Match(failure, line, captured, level, order)
                if surer:
                    # What was a warning before is an error now.
                    kept[-1] = finding
                else:
                    kept.append(finding)
                news = True
        return news

    def _note_conditions(self, text: str) -> bool:
        """Note which conditions of entries on other lines of the log this line fulfils: of each
        entry one, so that a condition that an entry has twice needs two lines."""
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
        """A launcher says that something failed."""
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
        """What the lines so far say."""
        active = self._complete(self._active)
        survived = [f for f in self._survived.values() if self._holds(f.failure)]
        if self._ended_well:
            return Verdict(ended_well=True)
        unexplained = self._errors.unexplained()
        verdict = _judge(active, unexplained)
        if verdict.finding is not None and verdict.finding.level == "symptom":
            verdict.words = self._errors.first_words
        if verdict.finding is None and verdict.error is None and self._first_sign:
            # Something failed, and all that was said came before lines of progress: they may have
            # waited in a buffer.
            verdict = _judge(survived, None)
            if verdict.finding is None:
                verdict.error = self._survived_error
        if verdict.finding is None and verdict.error is None:
            verdict.error = self._errors.first_words
            verdict.sign = self._first_sign
        if unexplained is not None and verdict.finding is None:
            # What came before an error that no entry knows may have led to it, and what came after
            # may be its consequence: told, not named.
            verdict.noticed = [
                found
                for found in sorted(active, key=_when)
                if found.level == ("likely" if found.order < unexplained.order else "cause")
            ]
        elif verdict.finding is None or verdict.finding.level == "symptom":
            verdict.noticed = sorted(self._complete(self._hints), key=_when)
        elif verdict.finding.level == "cause":
            # What led to it may have said more: a module that is not there, before the line of
            # job.setup that loads it.
            verdict.noticed = [
                found
                for found in sorted(active, key=_when)
                if found.level == "likely" and found.order < verdict.finding.order
            ]
        return verdict

    def _complete(self, found: dict[str, list[Match]]) -> list[Match]:
        """Those that fit as often as they have to, and whose conditions hold."""
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
            return Verdict(finding=min(fitting, key=_rank))
    return Verdict()


def _rank(finding: Match) -> tuple[bool, int, bool]:
    """Of entries that know the same line, one that knows other lines of the log too comes first."""
    return finding.failure.otherwise, finding.order, not finding.failure.also


def _fitting(failures: Iterable[Failure], line: Line) -> list[tuple[Failure, re.Match[str]]]:
    """The entries that know a line, each with what it found."""
    matches = ((failure, failure.match(line.text)) for failure in failures)
    return [(failure, found) for failure, found in matches if found is not None]
