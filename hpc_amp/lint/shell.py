"""Reads shell scripts: commands, comments and here-documents, with line numbers.

The reader accepts any text, also one with syntax errors, and its time is linear in the length of
the script. It follows the shell's quoting exactly, because many rules depend on which shell expands
a variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_DEPTH = 12
_PLAIN = re.compile(r"[^\s'\"\\`$#;&|<>()]+")
# Reserved words that a command follows.
_BEFORE_COMMAND = {"if", "then", "else", "elif", "while", "until", "do", "{", "!", "time", "}"}
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")


class ShellWord(NamedTuple):
    """A word. `text` has no quotes, and variables are not expanded.

    `live` is the part in which this shell expands variables. It does not include text in single
    quotes or characters after a backslash.
    """

    text: str
    live: str
    line: int
    items: tuple[ShellWord, ...] = ()  # the items of an array, NAME=(…)
    quoted: bool = False


@dataclass
class HereDoc:
    """A here-document. It is `live` (the shell expands variables) if its end word is not quoted."""

    text: str
    live: bool
    line: int


@dataclass
class Command:
    """A simple command.

    `depth` is the number of substitutions $(…) around it. `inside` has the commands in the
    substitutions of its own words.
    """

    line: int
    words: list[ShellWord]
    depth: int = 0
    background: bool = False
    heredocs: list[HereDoc] = field(default_factory=list)
    redirects: list[ShellWord] = field(default_factory=list)
    function: str | None = None  # the function that contains it
    inside: list[Command] = field(default_factory=list)

    @property
    def assignments(self) -> list[tuple[str, ShellWord]]:
        """The variables set by `NAME=value` before the command, or by `export` and similar."""
        found: list[tuple[str, ShellWord]] = []
        rest = self.words
        while rest and (match := ASSIGNMENT.match(rest[0].text)):
            found.append((match[1], rest[0]))
            rest = rest[1:]
        if rest and rest[0].text in ("export", "declare", "typeset", "local", "readonly"):
            for word in rest[1:]:
                if match := ASSIGNMENT.match(word.text):
                    found.append((match[1], word))
        return found

    @property
    def exported(self) -> set[str]:
        """The names that the command exports."""
        program = self.program
        if not program or program[0].text not in ("export", "declare", "typeset"):
            return set()
        flags = [word.text for word in program[1:] if word.text.startswith("-")]
        if program[0].text != "export" and not any("x" in flag for flag in flags):
            return set()
        if "-n" in flags or "-f" in flags:
            return set()
        return {word.text.partition("=")[0].rstrip("+") for word in program[1:]} - set(flags)

    @property
    def program(self) -> list[ShellWord]:
        """The words after the assignments: the program and its arguments."""
        rest = self.words
        while rest and ASSIGNMENT.match(rest[0].text):
            rest = rest[1:]
        return rest


class Comment(NamedTuple):
    """A comment. It is `alone` if only blanks precede it on its line."""

    line: int
    text: str
    alone: bool


@dataclass
class Shell:
    """All commands and comments of a script, in order.

    The commands in a substitution come before the command that contains the substitution.
    """

    commands: list[Command]
    comments: list[Comment]


def read_shell(text: str, first_line: int = 1, depth: int = 0) -> Shell:
    """Read a script, or a piece of one: it starts at `first_line`, in `depth` substitutions."""
    reader = _Reader(text, first_line, depth)
    reader.read()
    return Shell(reader.commands, reader.comments)


class _Reader:
    def __init__(self, text: str, first_line: int, depth: int) -> None:
        self._text = text
        self._at = 0
        self._line = first_line
        self._depth = depth
        self.commands: list[Command] = []
        self.comments: list[Comment] = []
        self._words: list[ShellWord] = []
        self._redirects: list[ShellWord] = []
        self._inside: list[Command] = []
        self._pending: list[tuple[str, bool, bool, list[HereDoc]]] = []
        self._heredocs: list[HereDoc] = []
        self._redirecting = False
        self._braces: list[str | None] = []  # for each open {, the function that it belongs to
        self._function: str | None = None  # the name of a function before its {
        self._alone = True

    # ---- the main loop ---------------------------------------------------------------------------
    def read(self) -> None:
        text, end = self._text, len(self._text)
        while self._at < end:
            char = text[self._at]
            if char == "\n":
                self._end_command()
                self._newline()
            elif char in " \t\r":
                self._at += 1
            elif char == "\\" and text[self._at + 1 : self._at + 2] == "\n":
                self._at += 2
                self._line += 1
            elif char == "#":
                self._comment()
            elif char in ";&|()<>":
                self._operator(char)
            else:
                self._alone = False
                self._word()
        self._end_command()

    def _newline(self) -> None:
        self._at += 1
        self._line += 1
        self._alone = True
        for word, strip, live, target in self._pending:
            target.append(self._heredoc(word, strip, live))
        self._pending = []

    def _heredoc(self, word: str, strip: bool, live: bool) -> HereDoc:
        start_line, lines = self._line, []
        while self._at < len(self._text):
            stop = self._text.find("\n", self._at)
            stop = len(self._text) if stop < 0 else stop
            line = self._text[self._at : stop].removesuffix("\r")
            self._at = min(stop + 1, len(self._text))
            self._line += 1
            if (line.lstrip("\t") if strip else line) == word:
                break
            lines.append(line)
        return HereDoc("\n".join(lines), live, start_line)

    def _comment(self) -> None:
        stop = self._text.find("\n", self._at)
        stop = len(self._text) if stop < 0 else stop
        self.comments.append(Comment(self._line, self._text[self._at : stop], self._alone))
        self._at = stop

    def _operator(self, char: str) -> None:
        text = self._text
        rest = text[self._at : self._at + 3]
        self._alone = False
        if char in "<>":
            self._redirect(rest)
            return
        if rest.startswith("((") and not self._words:
            self._skip_arithmetic()
            return
        if rest.startswith("&>"):
            self._at += 3 if rest == "&>>" else 2
            self._redirecting = True
            return
        if (
            char == "("
            and len(self._words) == 1
            and re.match(r"\(\s*\)", text[self._at : self._at + 20])
        ):
            self._function = self._words.pop().text  # name ( )
            self._at = text.index(")", self._at) + 1
            return
        width = 2 if rest[:2] in ("&&", "||", ";;", "|&") else 1
        self._at += width
        self._end_command(background=char == "&" and width == 1)

    def _redirect(self, rest: str) -> None:
        if rest.startswith(("<(", ">(")):
            self._word()
            return
        if self._words and self._words[-1].text.isdigit() and self._text[self._at - 1].isdigit():
            self._words.pop()  # the 2 of 2>
        if rest == "<<<":
            self._at += 3
        elif rest.startswith("<<"):
            strip = rest == "<<-"
            self._at += 3 if strip else 2
            while self._text[self._at : self._at + 1] in (" ", "\t"):
                self._at += 1
            word = self._read_word()
            self._pending.append((word.text, strip, not word.quoted, self._heredocs))
            return
        else:
            self._at += 2 if rest[:2] in (">>", ">&", "<&", ">|", "<>") else 1
        self._redirecting = True

    def _skip_arithmetic(self) -> None:
        stop = _closing(self._text, self._at + 1)
        self._line += self._text.count("\n", self._at, stop)
        self._at = stop

    def _word(self) -> None:
        word = self._read_word()
        if self._redirecting:
            self._redirecting = False
            self._redirects.append(word)
            return
        if not self._words and not word.quoted:
            if word.text == "{" or word.text == "}":
                if word.text == "{":
                    self._braces.append(self._function or (self._braces or [None])[-1])
                    self._function = None
                elif self._braces:
                    self._braces.pop()
                return
            if word.text in _BEFORE_COMMAND:
                return
        if len(self._words) == 1 and self._words[0].text == "function":
            self._function = word.text
            self._words = []
            return
        self._words.append(word)

    def _end_command(self, *, background: bool = False) -> None:
        self._redirecting = False
        heredocs, self._heredocs = self._heredocs, []
        words, self._words = self._words, []
        redirects, self._redirects = self._redirects, []
        inside, self._inside = self._inside, []
        if not words and not redirects:
            return
        line = words[0].line if words else redirects[0].line
        function = self._braces[-1] if self._braces else None
        self.commands += inside
        self.commands.append(
            Command(line, words, self._depth, background, heredocs, redirects, function, inside)
        )

    # ---- words -----------------------------------------------------------------------------------
    def _read_word(self, *, in_array: bool = False) -> ShellWord:
        text, end = self._text, len(self._text)
        line = self._line
        said: list[str] = []
        live: list[str] = []
        items: tuple[ShellWord, ...] = ()
        quoted = False
        while self._at < end:
            char = text[self._at]
            if char == "'":
                quoted = True
                stop = text.find("'", self._at + 1)
                stop = end if stop < 0 else stop
                said.append(text[self._at + 1 : stop])
                live.append("\0")
                self._advance(stop + 1)
            elif char == '"':
                quoted = True
                self._at += 1
                self._double_quoted(said, live)
            elif char == "\\":
                if text[self._at + 1 : self._at + 2] == "\n":
                    self._advance(self._at + 2)
                    continue
                quoted = True
                said.append(text[self._at + 1 : self._at + 2])
                live.append("\0")
                self._at += 2
            elif char == "$":
                self._dollar(said, live)
            elif char == "`":
                self._backquoted(said, live)
            elif text.startswith(("<(", ">("), self._at):
                stop = _closing(text, self._at + 1)
                self._substitution(self._at + 2, stop - 1)
                said.append(text[self._at : stop])
                live.append(text[self._at : stop])
                self._advance(stop)
            elif char == "(" and not (quoted or in_array) and ASSIGNMENT.fullmatch("".join(said)):
                items = self._array()
                said.append("(" + " ".join(item.text for item in items) + ")")
                live.append(" ".join(item.live for item in items))
                break
            elif char in " \t\r\n;&|()<>":
                break
            else:
                match = _PLAIN.match(text, self._at)
                piece = match[0] if match else char
                said.append(piece)
                live.append(piece)
                self._at += len(piece)
        return ShellWord("".join(said), "".join(live), line, items, quoted)

    def _advance(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def _double_quoted(self, said: list[str], live: list[str]) -> None:
        text, end = self._text, len(self._text)
        while self._at < end:
            char = text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\" and text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                escaped = text[self._at + 1]
                if escaped != "\n":
                    said.append(escaped)
                    live.append("\0")
                self._advance(self._at + 2)
            elif char == "$":
                self._dollar(said, live)
            elif char == "`":
                self._backquoted(said, live)
            else:
                stop = self._at + 1
                while stop < end and text[stop] not in '"\\$`':
                    stop += 1
                said.append(text[self._at : stop])
                live.append(text[self._at : stop])
                self._advance(stop)

    def _dollar(self, said: list[str], live: list[str]) -> None:
        text = self._text
        start = self._at
        if text.startswith("$((", start):
            stop = _closing(text, start + 1)
        elif text.startswith("$(", start):
            stop = _closing(text, start + 1)
            self._substitution(start + 2, stop - 1)
        elif text.startswith("${", start):
            stop = _closing(text, start + 1, "{", "}")
        elif text.startswith("$'", start):
            match = re.compile(r"\$'(?:[^'\\]|\\.)*'?", re.DOTALL).match(text, start)
            stop = match.end() if match else start + 2
            said.append(text[start + 2 : stop - 1])
            live.append("\0")
            self._advance(stop)
            return
        else:
            stop = start + 1
        said.append(text[start:stop])
        live.append(text[start:stop])
        self._advance(stop)

    def _backquoted(self, said: list[str], live: list[str]) -> None:
        match = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL).match(self._text, self._at)
        if match is None:
            self._at += 1
            return
        self._substitution(match.start(1), match.end(1))
        said.append(match[0])
        live.append(match[0])
        self._advance(match.end())

    def _substitution(self, start: int, stop: int) -> None:
        if self._depth >= _MAX_DEPTH:
            return
        line = self._line + self._text.count("\n", self._at, start)
        inner = read_shell(self._text[start:stop], line, self._depth + 1)
        self._inside += inner.commands

    def _array(self) -> tuple[ShellWord, ...]:
        self._at += 1
        items: list[ShellWord] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == ")":
                self._at += 1
                break
            if char in " \t\r\n":
                self._advance(self._at + 1)
            elif char == "#":
                self._comment()
            elif char in ";&|<>(":
                self._at += 1
            else:
                before = self._at
                items.append(self._read_word(in_array=True))
                if self._at == before:
                    self._at += 1
        return tuple(items)


_INTERESTING = {
    "(": re.compile(r"[()'\"\\`#]"),
    "{": re.compile(r"[{}'\"\\`]"),
}


def _closing(text: str, start: int, opening: str = "(", closing: str = ")") -> int:
    """The index after the bracket that closes the one at `start`, or the length of the text."""
    pattern, depth, at = _INTERESTING[opening], 0, start
    in_double = False
    while match := pattern.search(text, at):
        char, at = match[0], match.end()
        if char == "\\":
            at += 1
        elif char == '"':
            in_double = not in_double
        elif char == "'" and not in_double:
            stop = text.find("'", at)
            at = len(text) if stop < 0 else stop + 1
        elif char == "#":
            if not in_double and text[match.start() - 1] in " \t\n;":
                stop = text.find("\n", at)
                at = len(text) if stop < 0 else stop
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at
    return len(text)
