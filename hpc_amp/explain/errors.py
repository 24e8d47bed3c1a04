"""Errors that no entry explains: which lines of a log are errors at all, and whose.

A traceback is one error, and so are tracebacks that Python chains. What an entry says about any of
its lines explains all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpc_amp.explain.lines import Line

_HEADER = "Traceback (most recent call last)"
_CHAINED = re.compile(
    r"The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
)
# Python and torch show these tracebacks and go on.
_HARMLESS = re.compile(
    r"^Exception ignored in|^--- Logging error ---|^Error in atexit\.|^Exception in atexit"
    r"|^Exception ignored from cffi"
)
# The last line of a traceback that is known to be open, and the same where its head is missing.
_LAST = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Expired|Warning"
    r"|Failure|Failed|NotFound|Killed|error|timeout)|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?::(?:\s|$)|$)"
)
_ALONE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::\s|$)")
_OTHER = re.compile(
    r"^FATAL:\s|^hpc-amp: |^Fatal Python error: |\bSegmentation fault\b|^Bus error\b"
    r"|^\s*what\(\):\s|^Illegal instruction\b|: symbol lookup error: "
    r"|^(?:sbatch|salloc|srun|slurmstepd): fatal: |^(?:sbatch|salloc): error: "
)
# Endings that somebody else brought about.
_ASKED_FOR = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b")
_WORDS = re.compile(
    r"\b(?:errors?|fatal|failed|failure|exception|abort(?:ed|ing)?|panic|cannot|could not"
    r"|unable to|not found|denied|no such file|refused|killed)\b",
    re.IGNORECASE,
)
_NO_ERROR = re.compile(
    r"\b(?:0|no|without) (?:errors?|failures?)\b|\berror rate\b"
    r"|\berrors?\W{0,3}[\d.]|\berror[_=]|\w_errors?\b"
    r"|\b(?:warn(?:ing)?|info|debug|deprecat\w*)\b|\b(?:test_|tests?/)|%",
    re.IGNORECASE,
)
# A message may go on for some lines below the line that names the exception: indented ones, or any
# where the line says so.
_TAIL = 12
_LAUNCHER = re.compile(r"^(?:srun|slurmstepd\S*|mpirun|mpiexec): |^=>> ")
_GOES_ON = re.compile(r":$|NCCL error|CUDA error")
# A traceback has a last line; where it got lost among others, the wait for it ends.
_LONGEST_TRACEBACK = 500
_KEPT = 200


@dataclass(slots=True)
class Error:
    """One error: a traceback with all that belongs to it, or a line of its own."""

    line: Line | None = None
    explained: bool = False
    harmless: bool = False
    order: int = 0


@dataclass(slots=True)
class _Speaker:
    """What one rank is about to say. Without labels all ranks are one speaker."""

    open: int = 0
    chained: bool = False
    harmless_next: bool = False
    error: Error | None = None
    opened: int = 0
    last: int = -_TAIL - 1
    goes_on: bool = False


@dataclass(slots=True)
class Errors:
    """Collects the errors of a log, line by line."""

    found: list[Error] = field(default_factory=list)
    first_words: Line | None = None
    """A line that merely sounds like an error: shown where there is nothing better."""
    _speakers: dict[int | None, _Speaker] = field(default_factory=dict)
    _count: int = 0

    def look(self, line: Line, order: int) -> tuple[Error | None, bool]:
        """Take the next line, the `order`th. Returns the error it belongs to, if any, and whether
        entries may look at it: they may not where it is source code in a traceback."""
        self._count = order
        text = line.text
        speaker = self._speakers.setdefault(line.speaker, _Speaker())
        if _HARMLESS.search(text):
            speaker.harmless_next = True
            return None, False
        if text.startswith(_HEADER) or text.lstrip(" |").startswith(_HEADER):
            self._open(speaker)
            return speaker.error, False
        if speaker.open and order - speaker.opened > _LONGEST_TRACEBACK:
            speaker.open = 0
        if speaker.open:
            if text[:1].isspace() or not text:
                return speaker.error, False
            if _LAST.match(text):
                speaker.open -= 1
                speaker.last = order
                speaker.goes_on = bool(_GOES_ON.search(text))
                if _ASKED_FOR.match(text) and speaker.error is not None:
                    speaker.error.explained = True
                return self._keep(speaker, line), True
            return None, True
        near = order - speaker.last <= _TAIL
        if _CHAINED.search(text):
            speaker.chained = near
            return speaker.error if near else None, False
        alone = _ALONE.match(text) or _OTHER.search(text)
        if near and (
            text[:1].isspace() or (speaker.goes_on and not (alone or _LAUNCHER.match(text)))
        ):
            return speaker.error, True
        if alone:
            speaker.error = Error(order=order, harmless=speaker.harmless_next)
            speaker.harmless_next = False
            speaker.last = order
            speaker.goes_on = bool(_GOES_ON.search(text))
            self._remember(speaker.error)
            return self._keep(speaker, line), True
        if self.first_words is None and _WORDS.search(text) and not _NO_ERROR.search(text):
            self.first_words = line
        return None, True

    def unexplained(self) -> Error | None:
        """The first error that nothing explains."""
        return next((error for error in self.found if error.line and not error.explained), None)

    def forget(self) -> None:
        """What came before does not count any more."""
        self.found.clear()
        self._speakers.clear()
        self.first_words = None

    def _open(self, speaker: _Speaker) -> None:
        speaker.open += 1
        speaker.opened = self._count
        if speaker.chained and speaker.error is not None:
            speaker.chained = False
            return
        speaker.error = Error(order=self._count, harmless=speaker.harmless_next)
        speaker.harmless_next = False
        self._remember(speaker.error)

    def _remember(self, error: Error) -> None:
        if len(self.found) >= _KEPT:
            # Which came first matters; the many that were explained do not.
            self.found = [old for old in self.found if not old.explained][: _KEPT - 1]
        self.found.append(error)

    def _keep(self, speaker: _Speaker, line: Line) -> Error | None:
        error = speaker.error
        if error is None:
            return None
        if error.harmless:
            error.explained = True
        # Of a chain the last says what the program died of.
        error.line = line
        return error
