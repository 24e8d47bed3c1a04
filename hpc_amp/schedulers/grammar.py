"""Grammars: how a scheduler reads the directives of a script.

A grammar says which lines are directives, how they are split into words, and which options the
words are. The linter, the renderer and the schedulers use it. Each scheduler with directives has a
`Grammar` in the module `grammar` of its folder.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from hpc_amp.schedulers.options import OptionTable
from hpc_amp.schedulers.words import BLANKS, OptionWord, Split


class Directive(NamedTuple):
    """A directive of a script. `text` is the text after the marker."""

    line: int
    text: str
    split: Split


class Header(NamedTuple):
    """The directives that a scheduler reads in a script. `end` is the number of the line at which
    it stops reading. If it reads the whole script, this is the number of lines plus one."""

    grammar: Grammar
    directives: tuple[Directive, ...]
    end: int


class Option(NamedTuple):
    """An option of a directive. `name` is its long name if it has one. `known`: the scheduler has
    this option. `related`: only a related scheduler has it. `attached`: the option is a letter with
    its value in the same word."""

    name: str
    spelling: str
    value: str | None
    word: OptionWord
    value_word: OptionWord | None = None
    attached: bool = False
    known: bool = True
    related: bool = False

    @property
    def line(self) -> int:
        """The number of its line, from 1."""
        return self.word.line

    @property
    def shown(self) -> str:
        """The option with its value, for messages."""
        if self.value is None:
            return self.spelling
        return f"{self.spelling}{'=' if self.spelling.startswith('--') else ' '}{self.value}"


@dataclass
class Options:
    """All options of a header, in order. `strays` are words that belong to no option, and `alone`
    the words of `Grammar.alone`. `no_value` are options whose value is missing; their `value` is
    the word that the scheduler would use for it."""

    options: list[Option] = field(default_factory=list)
    strays: list[OptionWord] = field(default_factory=list)
    no_value: list[Option] = field(default_factory=list)
    alone: list[OptionWord] = field(default_factory=list)

    def all(self, name: str) -> list[Option]:
        """All options with a name."""
        return [option for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        """The value of the last option with a name; None if there is none."""
        found = self.all(name)
        return found[-1].value if found else None


class Requested(NamedTuple):
    """The resources that a header requests. Numbers that the header does not give plainly are
    None."""

    nodes: int | None = None
    chunks: int | None = None
    """Number of chunks (parts of nodes), if it is not requested that each is on another node."""
    tasks: int | None = None
    tasks_said: bool = False
    """Whether the header has a number of tasks, even if it is not a plain number."""
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus: bool = False
    """Whether the header requests GPUs in any form."""
    for_launchers: bool = False
    """Whether launchers take the number of tasks from the header if their options do not give
    one."""
    starts_ranks: bool = False
    """Whether the scheduler itself starts processes on the nodes."""


class Joined(NamedTuple):
    """How two values of a repeated option can be joined to one."""

    separator: str
    form: str = r".+"
    """A regular expression for the values that can be joined."""
    named: bool = False
    """Whether values are lists of names with counts or values, in which no name may occur twice."""


class Grammar(ABC):
    """How one scheduler reads the directives of a script. Holds no state.

    The rules of this package's schedulers were taken from their sources and tested on running
    schedulers.
    """

    # ---- lines -----------------------------------------------------------------------------------
    name: ClassVar[str]
    """The scheduler's name in the registry."""
    title: ClassVar[str]
    """The scheduler's name in messages."""
    command: ClassVar[str]
    """The program that reads the script, such as `sbatch`."""
    marker: ClassVar[str]
    """The beginning of a directive, such as `#SBATCH`."""
    needs_blank: ClassVar[bool] = False
    """Whether a line with the marker is a directive only if a blank follows."""
    refuses_crlf: ClassVar[bool] = True
    """Whether the scheduler refuses a script with DOS line endings."""
    without_shebang: ClassVar[str] = ""
    """What the scheduler does with a script whose first line does not begin with `#!`: the
    beginning of a sentence that continues with `whose`. Empty if it accepts such a script."""

    # ---- words -----------------------------------------------------------------------------------
    has_quotes: ClassVar[bool] = True
    """Whether quotes keep words together."""
    has_comments: ClassVar[bool] = False
    """Whether a `#` after the options of a directive begins a comment."""
    quotes_keep_hash: ClassVar[bool] = True
    """Whether a `#` inside quotes does not begin a comment."""
    backslash: ClassVar[Literal["lost", "joins", "kept"]] = "lost"
    """The effect of a backslash at the end of a directive: it is ignored (`lost`), it joins the
    next line (`joins`), or it is a word (`kept`)."""
    alone: ClassVar[frozenset[str]] = frozenset()
    """Words that are not options and have a line of their own."""

    # ---- options ---------------------------------------------------------------------------------
    options: ClassVar[OptionTable]
    related: ClassVar[OptionTable] = OptionTable()
    """Further options that related schedulers have."""
    complete: ClassVar[bool] = False
    """Whether the scheduler refuses all other options. If not, plug-ins of a site may add some."""
    whole_words: ClassVar[bool] = False
    """Whether the word after a single dash is one option (`-cwd`), not a group of letters."""
    values: ClassVar[Mapping[str, int]] = {}
    """Options whose value has more than one word, with the number of words."""
    lines_apart: ClassVar[bool] = False
    """Whether each directive is a command line of its own. If not, the words of all directives are
    one command line, and a value may be on the next line."""
    stops_at_stray: ClassVar[bool] = False
    """Whether a word that belongs to no option makes the scheduler ignore all options after it. If
    not, it refuses the script."""
    long_separator: ClassVar[Literal["=", " "]] = "="
    """The separator between a `--long` option and its value."""
    paths: ClassVar[frozenset[str]] = frozenset()
    """Options whose values are paths, in which `~` has no meaning."""

    # ---- what options mean -----------------------------------------------------------------------
    keys: ClassVar[Mapping[str, str]] = {}
    """The options that hpc-amp generates from keys of a job file, each with its key."""
    joined: ClassVar[Mapping[str, Joined]] = {}
    """Options whose values can be joined."""
    counts_minutes: ClassVar[bool] = False
    """Whether a time limit that is one number counts minutes, not seconds."""

    # ---- what scripts for this scheduler use -----------------------------------------------------
    once_a_node: ClassVar[str] = "mpiexec -n NODES --ppn 1"
    """The launcher that starts a command once on each node."""
    job_number: ClassVar[str] = "$$"
    """The job's number, as an operand of shell arithmetic."""
    first_node: ClassVar[str] = "$(hostname)"
    """A shell expression for the name of the job's first node."""
    launchers: ClassVar[Mapping[str, OptionTable]] = {}
    """Launchers that have the options of directives, each with its further options."""

    @property
    def instead_of_variables(self) -> str:
        """The advice for a shell variable in a directive."""
        return f"write the value out, or give the option on {self.command}'s command line"

    @abstractmethod
    def split(self, text: str, line: int = 1) -> Split:
        """Split a directive into words. `text` is the text after the marker, `line` the number of
        its line."""

    def seconds(self, limit: str) -> int | None:
        """A time limit in seconds, or None if it is not understood. The usual form is
        `[D-]HH:MM:SS`; two numbers are minutes and seconds, or, after days, hours and minutes."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
        if match is None:
            return None
        days, *given = match.groups()
        parts = [int(part) for part in given if part is not None]
        if days is not None:
            hours, minutes, seconds = [*parts, 0, 0][:3]
            return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
        if len(parts) == 1:
            return parts[0] * (60 if self.counts_minutes else 1)
        hours, minutes, seconds = [0, *parts][-3:]
        return (hours * 60 + minutes) * 60 + seconds

    def text_of(self, line: str) -> str | None:
        """The text after the marker of a directive; None if the line is not a directive."""
        marker = f"{self.marker} " if self.needs_blank else self.marker
        return line.removeprefix(marker) if line.startswith(marker) else None

    def goes_on(self, line: str, number: int) -> bool:
        """Whether the scheduler continues to read after a line that is not a directive. `number`
        is the number of the line, from 1."""
        bare = line.strip(BLANKS)
        return not bare or bare.startswith("#")

    def why_unread(self, line: str) -> str | None:
        """Why a line that has the marker at its beginning, or after blanks, is not a directive.
        None if it is one."""
        if self.text_of(line) is not None:
            return None
        if not line.startswith(self.marker):
            return "blanks before the marker"
        return f"not exactly one `{self.marker}` and a blank"

    def ends_with_backslash(self, text: str) -> bool:
        """Whether the last letter of a directive is an unescaped backslash."""
        text = text.rstrip(BLANKS)
        return (len(text) - len(text.rstrip("\\"))) % 2 == 1

    def read(self, lines: Sequence[str]) -> Header:
        """Read the directives of a script, given by its lines. A missing `#!` line is not
        reported."""
        found: list[Directive] = []
        joined = 0  # the number of the last line that is part of a directive
        for number, line in enumerate(lines, 1):
            if number <= joined:
                continue
            text = self.text_of(line)
            if text is not None:
                joined = number
                while (
                    self.backslash == "joins"
                    and self.ends_with_backslash(text)
                    and joined < len(lines)
                ):
                    text = text.rstrip(BLANKS)[:-1] + lines[joined]
                    joined += 1
                found.append(Directive(number, text, self.split(text, number)))
            elif not self.goes_on(line, number):
                return Header(self, tuple(found), number)
        return Header(self, tuple(found), len(lines) + 1)

    def is_meant(self, header: Header) -> bool:
        """Whether the directives of a header were written for this scheduler. A scheduler whose
        marker can begin an ordinary comment should require more than one directive."""
        return bool(header.directives)

    # ---- options ---------------------------------------------------------------------------------

    def parse(self, header: Header) -> Options:
        """Read the options of a header."""
        result = Options()
        words: list[OptionWord] = []
        for directive in header.directives:
            own = directive.split.words
            if len(own) == 1 and own[0].text in self.alone:
                result.alone.append(own[0])
            elif self.lines_apart:
                self._read_words(own, result)
            else:
                words += own
        self._read_words(words, result)
        return result

    def parse_line(self, text: str) -> Options:
        """Read the options of a single directive, given without its marker."""
        return self.parse(Header(self, (Directive(1, text, self.split(text)),), 2))

    def _read_words(self, words: Sequence[OptionWord], result: Options) -> None:
        has_long = bool(self.options.all_long)
        at = 0
        while at < len(words):
            word = words[at]
            text = word.text
            if text == "--":
                result.strays += words[at + 1 :]
                return
            if text.startswith("--") and has_long:
                at = self._add_long(words, at, result)
            elif text.startswith("-") and len(text) > 1:
                add = self._add_whole if self.whole_words else self._add_short
                at = add(words, at, result)
            else:
                # getopt and optparse stop at the first word that is not an option.
                result.strays.append(word)
                if self.stops_at_stray:
                    return
                at += 1
                while at < len(words) and words[at].line == word.line:
                    at += 1

    def _add_long(self, words: Sequence[OptionWord], at: int, result: Options) -> int:
        """Add the option at the index `at`. Returns the index of the next word to read."""
        word = words[at]
        spelling, equals, rest = word.text.partition("=")
        value = rest if equals else None
        takes = self.options.takes_value(spelling)
        known = takes is not None
        name = self.options.canonical(spelling) or spelling[2:]
        following = words[at + 1] if at + 1 < len(words) else None
        if value is not None or takes is False:
            result.options.append(Option(name, spelling, value, word, word, known=known))
            return at + 1
        if takes is None:
            # It may be an option of a plug-in. The next word on its line may be its value.
            is_value = (
                following is not None
                and following.line == word.line
                and not following.text.startswith("-")
            )
            text = following.text if following is not None and is_value else None
            result.options.append(Option(name, spelling, text, word, following, known=False))
            return at + (2 if is_value else 1)
        if following is None:
            result.no_value.append(Option(name, spelling, None, word))
            return at + 1
        if following.line != word.line and following.text.startswith("-"):
            # The scheduler would use an option of the next line as the value. This is certainly a
            # mistake, so reading continues with that option.
            result.no_value.append(Option(name, spelling, following.text, word))
            return at + 1
        result.options.append(Option(name, spelling, following.text, word, following))
        return at + 2

    def _add_short(self, words: Sequence[OptionWord], at: int, result: Options) -> int:
        """Add the options of a word of letters: flags, and possibly a last option with its value in
        the same word or the next one. Returns the index of the next word to read."""
        word = words[at]
        for index, letter in enumerate(word.text[1:], 1):
            spelling = f"-{letter}"
            rest = word.text[index + 1 :]
            related = False
            takes = self.options.takes_value(spelling)
            if takes is None:
                takes = self.related.takes_value(spelling)
                related = takes is not None
            name = self.options.canonical(spelling) or letter
            if takes is False:
                result.options.append(Option(name, spelling, None, word, related=related))
                continue
            known = takes is not None
            if rest:
                option = Option(name, spelling, rest, word, word, True, known, related)
                result.options.append(option)
                return at + 1
            following = words[at + 1] if at + 1 < len(words) else None
            next_is_option = (
                following is not None
                and following.text.startswith("-")
                and (following.line != word.line or not known)
            )
            if following is None or next_is_option:
                if known:
                    option = Option(name, spelling, following.text if following else None, word)
                    result.no_value.append(option)
                else:
                    result.options.append(Option(name, spelling, None, word, known=False))
                return at + 1
            option = Option(name, spelling, following.text, word, following, False, known, related)
            result.options.append(option)
            return at + 2
        return at + 1

    def _add_whole(self, words: Sequence[OptionWord], at: int, result: Options) -> int:
        """Add an option that is a whole word, and the words of its value. Returns the index of the
        next word to read."""
        word = words[at]
        takes = self.options.takes_value(word.text)
        name = self.options.canonical(word.text) or word.text[1:]
        if not takes:
            option = Option(name, word.text, None, word, known=takes is not None)
            result.options.append(option)
            return at + 1
        count = self.values.get(name, 1)
        own = words[at + 1 : at + 1 + count]
        if len(own) < count or any(one.line != word.line for one in own):
            result.no_value.append(Option(name, word.text, None, word))
            return at + 1
        value = " ".join(one.text for one in own)
        result.options.append(Option(name, word.text, value, word, own[0]))
        return at + 1 + count

    # ---- what options mean -----------------------------------------------------------------------

    def entries(self, option: Option) -> list[tuple[str, str]] | None:
        """The entries of an option, each as its name and its text, if the scheduler combines the
        entries of repeated options. None for other options."""
        return None

    def first_counts(self, option: str) -> bool:
        """Whether the first of several options with a name is used, not the last. The name of an
        entry of an option (`entries`) is `OPTION ENTRY`."""
        return False

    def without_own_variables(self, option: Option) -> str:
        """The value of an option without the variables that the scheduler replaces there."""
        return option.value or ""

    def requested(self, options: Options) -> Requested:
        """The resources that the options request."""
        return Requested()


def number(text: str | None) -> int | None:
    """Convert a plain number; None for any other text."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


def tasks_on_each(per_node: str | None, tasks: str | None, nodes: int | None) -> int | None:
    """The number of tasks on each node, from two options of a launcher: tasks per node, and tasks.
    1 without both options; None if the number is not known."""
    if per_node is not None:
        return number(per_node)
    if tasks is None:
        return 1
    count = number(tasks)
    if count is None or (nodes is None and count > 1):
        return None
    return -(-count // (nodes or 1))
