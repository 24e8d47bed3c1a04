"""Errors that no entry explains: which lines of a log are errors at all, and whose.

A traceback is one error, and so are tracebacks that Python chains, and those of a group of
exceptions. What an entry says about any of its lines explains all of it. Where none does, the root
is shown: the exception that caused the others, not the last one that was made of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpc_amp.explain.lines import Line

# Something may stand before it: a logger's words, or a line of another rank that had no end yet.
_HEADER = re.compile(
    r"^(?:Exception Group )?Traceback \(most recent call last\)"
    r"|Traceback \(most recent call last\):$"
)
# A traceback in a frame, as rich draws it: source code all of it, and the exception below.
_BOX = re.compile(r"^\W[\W_]*Traceback \(most recent call last\) ?[\W_]*$")
_BOX_END = re.compile(r"^[╰└+][─-]+[╯┘+]$")
# A progress bar that an error was written behind.
_BAR = re.compile(r"^[^|]*\|[^|]*\|.{0,80}?\[\d+:\d\d[^\]]*\]")
# Of an exception that was made of another: what it was made of stands below, not above.
_ORIGINAL = re.compile(r"^Original Traceback \(most recent call last\):")
_ANNOUNCES = re.compile(r"\b(?:trace(?:back)?|error|exception)s?:$", re.IGNORECASE)
_SOON = 4
_CAUSED = re.compile(r"^\W*The above exception was the direct cause of the following exception:")
_HANDLED = re.compile(r"^\W*During handling of the above exception, another exception occurred:")
# Between the exceptions of a group. A group says how many it has, they say why.
_PART = re.compile(r"^\s*\+[+-]+ (?:\d+|\.\.\.) -+$")
_GROUP = re.compile(r"^(?:\w+\.)*\w+: .*\(\d+ sub-exceptions?\)$")
# Programs look for things in one place and, where they are not there, in another: such an exception
# that was being handled is not a root.
_LOOKED_UP = re.compile(
    r"^(?:\w+\.)*(?:KeyError|IndexError|AttributeError|StopIteration|ImportError"
    r"|ModuleNotFoundError|FileNotFoundError|Empty)\b"
)
# Python and torch show these tracebacks and go on.
_HARMLESS = re.compile(
    r"^Exception ignored in|^--- Logging error ---|^Error in atexit\.|^Exception in atexit"
    r"|^Exception ignored from cffi"
)
# The last line of a traceback that is known to be open, and the same where its head is missing.
_LAST = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Expired|Warning"
    r"|Failure|Failed|NotFound|Killed|ExceptionGroup|error|timeout)|(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?::(?:\s|$)|$)"
)
# The same for a class of the program's own, such as `Diverged: ...`. Other lines look like it:
# it counts where a traceback has no other last line.
_NAMED = re.compile(r"^_?[A-Z]+[a-z]\w*(?::\s|$)")
_ALONE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::\s|$)")
_OTHER = re.compile(
    # The stacks that hpc-amp shows of a rank that stands still are not errors of their own.
    r"^FATAL:\s|^hpc-amp: (?!rank \d+:(?:  |$| (?:Current t|T)hread 0x))"
    r"|^Fatal Python error: |\bSegmentation fault\b|^Bus error\b|^\s*what\(\):\s"
    r"|^Illegal instruction\b|: symbol lookup error: "
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
    """One error: a traceback with all that belongs to it, or a line of its own. `line` is its root,
    `last` what the program died of; of most errors they are the same."""

    line: Line | None = None
    last: Line | None = None
    perhaps: Line | None = None
    """What may be the line, where no other comes."""
    explained: bool = False
    harmless: bool = False
    order: int = 0


@dataclass(slots=True)
class _Speaker:
    """What one rank is about to say. Without labels all ranks are one speaker."""

    open: int = 0
    link: re.Pattern[str] | None = None
    """What joins the next traceback to the one before."""
    harmless_next: bool = False
    boxed: bool = False
    framed: bool = False
    """Whether the line before was source code of a traceback."""
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
    _speakers: dict[str | None, _Speaker] = field(default_factory=dict)
    _count: int = 0

    def look(self, line: Line, order: int) -> tuple[Error | None, bool]:
        """Take the next line, the `order`th. Returns the error it belongs to, if any, and whether
        entries may look at it: they may not where it is source code in a traceback."""
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
            # An exception in a group that was never raised has no traceback.
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
        """The first error that nothing explains."""
        for error in self.found:
            error.line = error.line or error.perhaps
            if error.line and not error.explained:
                return error
        return None

    def forget(self) -> None:
        """What came before does not count any more."""
        self.found.clear()
        self._speakers.clear()
        self.first_words = None

    def _tells_more(self, speaker: _Speaker, header: str) -> bool:
        """Whether the traceback that begins here is what the exception before was made of."""
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
            # Which came first matters; the many that were explained do not.
            self.found = [old for old in self.found if not old.explained][: _KEPT - 1]
        self.found.append(error)

    def _keep(self, speaker: _Speaker, line: Line) -> Error | None:
        error, link = speaker.error, speaker.link
        speaker.link = None
        if error is None:
            return None
        if error.line is not None and link is None:
            # Two ranks without labels: their tracebacks began both, and this is the second to end.
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
    """What joins the tracebacks before and after this line, if this line does."""
    for link in (_CAUSED, _HANDLED, _PART):
        if link.match(text):
            return link
    return None


def _gives_way(root: str, link: re.Pattern[str]) -> bool:
    """Whether the next exception is nearer to the root than what was taken for it."""
    if link is _PART:
        return _GROUP.match(root) is not None
    if link is _HANDLED:
        return _LOOKED_UP.match(root) is not None
    return link is _ORIGINAL
