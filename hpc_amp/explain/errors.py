"""Finds the errors in a log, so that the first one that no entry explains can be shown.

A traceback is one error. Chained tracebacks and the tracebacks of an exception group are also one
error. If an entry knows one of its lines, the whole error is explained. If none does, its root is
shown: the exception that caused the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpc_amp.explain.lines import Line

# The text of a logger, or an unfinished line of another rank, may come before it.
_HEADER = re.compile(
    r"^(?:Exception Group )?Traceback \(most recent call last\)"
    r"|Traceback \(most recent call last\):$"
)
# A traceback in a box, as rich draws it. The box contains source code; the exception follows it.
_BOX = re.compile(r"^\W[\W_]*Traceback \(most recent call last\) ?[\W_]*$")
_BOX_END = re.compile(r"^[╰└+][─-]+[╯┘+]$")
# A progress bar with an error after it on the same line.
_BAR = re.compile(r"^[^|]*\|[^|]*\|.{0,80}?\[\d+:\d\d[^\]]*\]")
# An exception that was raised again in another process: the original follows, not precedes.
_ORIGINAL = re.compile(r"^Original Traceback \(most recent call last\):")
_ANNOUNCES = re.compile(r"\b(?:trace(?:back)?|error|exception)s?:$", re.IGNORECASE)
_SOON = 4
_CAUSED = re.compile(r"^\W*The above exception was the direct cause of the following exception:")
_HANDLED = re.compile(r"^\W*During handling of the above exception, another exception occurred:")
# Between the exceptions of a group. The group only has their number, they have the reasons.
_PART = re.compile(r"^\s*\+[+-]+ (?:\d+|\.\.\.) -+$")
_GROUP = re.compile(r"^(?:\w+\.)*\w+: .*\(\d+ sub-exceptions?\)$")
# Programs often search in one place, catch the exception, and search in another. Such an exception
# that was being handled is not the root of an error.
_LOOKED_UP = re.compile(
    r"^(?:\w+\.)*(?:KeyError|IndexError|AttributeError|StopIteration|ImportError"
    r"|ModuleNotFoundError|FileNotFoundError|Empty)\b"
)
# Python and torch print these tracebacks and continue.
_HARMLESS = re.compile(
    r"^Exception ignored in|^--- Logging error ---|^Error in atexit\.|^Exception in atexit"
    r"|^Exception ignored from cffi"
)
# The last line of a traceback whose first line was seen (_LAST), or was not seen (_ALONE).
_LAST = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Expired|Warning"
    r"|Failure|Failed|NotFound|Killed|ExceptionGroup|error|timeout)|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?::(?:\s|$)|$)"
)
# The same for a class of the program, such as `Diverged: ...`. Many lines look like this, so it
# only counts if the traceback has no other last line.
_NAMED = re.compile(r"^_?[A-Z]+[a-z]\w*(?::\s|$)")
_ALONE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::\s|$)")
_OTHER = re.compile(
    # The stacks that hpc-amp prints for a rank that hangs are not errors.
    r"^FATAL:\s|^hpc-amp: (?!rank \d+:(?:  |$| (?:Current t|T)hread 0x))"
    r"|^Fatal Python error: |\bSegmentation fault\b|^Bus error\b|^\s*what\(\):\s"
    r"|^Illegal instruction\b|: symbol lookup error: "
    r"|^(?:sbatch|salloc|srun|slurmstepd): fatal: |^(?:sbatch|salloc): error: "
)
# Exceptions that something else requested.
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
# A message may continue after the line with the exception: in indented lines, or in any lines if
# the first line ends like _GOES_ON.
_TAIL = 12
_LAUNCHER = re.compile(r"^(?:srun|slurmstepd\S*|mpirun|mpiexec): |^=>> ")
_GOES_ON = re.compile(r":$|NCCL error|CUDA error")
# After so many lines, a traceback is closed although its last line was not seen.
_LONGEST_TRACEBACK = 500
_KEPT = 200


@dataclass(slots=True)
class Error:
    """An error: a traceback with everything that belongs to it, or a single line."""

    line: Line | None = None
    """The root: the exception that caused the others."""
    last: Line | None = None
    """The exception that ended the program. It is often the same as `line`."""
    perhaps: Line | None = None
    """The line to use if no better one follows."""
    explained: bool = False
    """Whether an entry knows one of its lines."""
    harmless: bool = False
    """Whether the program continues after it."""
    order: int = 0
    """The number of its first line."""


@dataclass(slots=True)
class _Speaker:
    """The state of one source of lines, usually a rank. Without labels there is only one."""

    open: int = 0
    link: re.Pattern[str] | None = None
    """The line that chains the next traceback to the previous one."""
    harmless_next: bool = False
    boxed: bool = False
    framed: bool = False
    """Whether the previous line was source code of a traceback."""
    error: Error | None = None
    opened: int = 0
    last: int = -_TAIL - 1
    goes_on: bool = False


@dataclass(slots=True)
class Errors:
    """Collects the errors of a log, line by line."""

    found: list[Error] = field(default_factory=list)
    first_words: Line | None = None
    """The first line with a word such as `error`: shown if there is nothing better."""
    _speakers: dict[str | None, _Speaker] = field(default_factory=dict)
    _count: int = 0

    def look(self, line: Line, order: int) -> tuple[Error | None, bool]:
        """Read the next line, whose number is `order`.

        Returns the error that the line belongs to, or None, and whether entries may match the line.
        They may not if the line is source code in a traceback.
        """
        self._count = order
        text = _BAR.sub("", line.text) if "<" in line.text else line.text
        speaker = self._speakers.setdefault(line.speaker, _Speaker())
        if speaker.boxed or _BOX.match(text):
            speaker.boxed = not _BOX_END.match(text)
            if not speaker.boxed:
                self._open(speaker)
                speaker.framed = True
            return None, False
        if _HARMLESS.search(text):
            speaker.harmless_next = True
            return None, False
        if _HEADER.search(text) and not (speaker.open and text[:1].isspace()):
            if self._tells_more(speaker, text):
                speaker.link = _ORIGINAL
            self._open(speaker)
            return speaker.error, False
        link = _link(text)
        if link is not None and speaker.error is not None:
            if speaker.error.line is None and speaker.error.perhaps is not None:
                speaker.open -= 1
                self._keep(speaker, speaker.error.perhaps)
            speaker.link = link
            return speaker.error, False
        if speaker.open and order - speaker.opened > _LONGEST_TRACEBACK:
            speaker.open = 0
        if speaker.open:
            if text[:1].isspace() or not text:
                speaker.framed = True
                return speaker.error, False
            framed, speaker.framed = speaker.framed, False
            error = speaker.error
            if _LAST.match(text):
                speaker.open -= 1
                speaker.last = order
                speaker.goes_on = bool(_GOES_ON.search(text))
                if _ASKED_FOR.match(text) and error is not None:
                    error.explained = True
                return self._keep(speaker, line), True
            if framed and error and not error.line and not error.perhaps and _NAMED.match(text):
                error.perhaps = line
                return error, True
            if not _OTHER.search(text):
                return None, True
        near = order - speaker.last <= _TAIL
        if speaker.link is _PART and _LAST.match(text):
            # An exception in a group has no traceback if it was never raised.
            speaker.last = order
            return self._keep(speaker, line), True
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
        """Return the first error that no entry explains, or None."""
        for error in self.found:
            error.line = error.line or error.perhaps
            if error.line and not error.explained:
                return error
        return None

    def forget(self) -> None:
        """Forget all errors so far."""
        self.found.clear()
        self._speakers.clear()
        self.first_words = None

    def _tells_more(self, speaker: _Speaker, header: str) -> bool:
        """Whether the traceback that begins here is the original of the previous exception."""
        last = speaker.error.last if speaker.error is not None else None
        if last is None or self._count - speaker.last > _SOON:
            return False
        return bool(_ORIGINAL.match(header) or _ANNOUNCES.search(last.text))

    def _open(self, speaker: _Speaker) -> None:
        speaker.open += 1
        speaker.opened = self._count
        if speaker.link is not None:
            return
        speaker.error = Error(order=self._count, harmless=speaker.harmless_next)
        speaker.harmless_next = False
        self._remember(speaker.error)

    def _remember(self, error: Error) -> None:
        if len(self.found) >= _KEPT:
            # Drop explained errors. The first unexplained one must be kept.
            self.found = [old for old in self.found if not old.explained][: _KEPT - 1]
        self.found.append(error)

    def _keep(self, speaker: _Speaker, line: Line) -> Error | None:
        error, link = speaker.error, speaker.link
        speaker.link = None
        if error is None:
            return None
        if error.line is not None and link is None:
            # The tracebacks of two ranks without labels overlap, and this is the end of the second.
            error = speaker.error = Error(order=error.order, harmless=error.harmless)
            self._remember(error)
        if error.harmless:
            error.explained = True
        if error.line is None or (link and _gives_way(error.line.text, link)):
            error.line = line
        if link not in (_PART, _ORIGINAL):
            error.last = line
        return error


def _link(text: str) -> re.Pattern[str] | None:
    """The pattern of a line that chains two tracebacks, or None if the line does not."""
    for link in (_CAUSED, _HANDLED, _PART):
        if link.match(text):
            return link
    return None


def _gives_way(root: str, link: re.Pattern[str]) -> bool:
    """Whether the next exception is nearer to the root than `root`."""
    if link is _PART:
        return _GROUP.match(root) is not None
    if link is _HANDLED:
        return _LOOKED_UP.match(root) is not None
    return link is _ORIGINAL
