"""What a scheduler reads of a script: which lines are directives, how they are split into words,
and which options the words are. The linter, the renderer's check and the schedulers themselves ask
a `Grammar`; each scheduler that reads directives has one, in the module `grammar` of its folder."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from hpc_amp.schedulers.options import OptionTable
from hpc_amp.schedulers.words import BLANKS, OptionWord, Split


@dataclass(frozen=True)
class Directive:
    """A line that a scheduler reads; `text` is what follows the marker."""

    line: int
    text: str
    split: Split


@dataclass(frozen=True)
class Header:
    """What one scheduler reads of a script. `end` is the number of the line at which its scan
    stops, one behind the last line if it does not."""

    grammar: Grammar
    directives: tuple[Directive, ...]
    end: int


@dataclass(frozen=True)
class Option:
    """An option as a scheduler understands it. `name` is the long name where there is one, `known`
    is False for one that the scheduler itself does not have, `related` is True for one that only a
    relative of the scheduler has."""

    name: str
    spelling: str
    value: str | None
    word: OptionWord
    value_word: OptionWord | None = None
    attached: bool = False  # a letter with its value in the same word
    known: bool = True
    related: bool = False

    @property
    def line(self) -> int:
        return self.word.line

    @property
    def shown(self) -> str:
        """As it was written, more or less."""
        if self.value is None:
            return self.spelling
        return f"{self.spelling}{'=' if self.spelling.startswith('--') else ' '}{self.value}"


@dataclass
class Options:
    """All options of a header, in order, and the words that belong to none. `alone` are the words
    of `Grammar.alone`; `no_value` are options that lack their value, and have the word that the
    scheduler would take for it."""

    options: list[Option] = field(default_factory=list)
    strays: list[OptionWord] = field(default_factory=list)
    no_value: list[Option] = field(default_factory=list)
    alone: list[OptionWord] = field(default_factory=list)

    def all(self, name: str) -> list[Option]:
        return [option for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        found = self.all(name)
        return found[-1].value if found else None


@dataclass(frozen=True)
class Requested:
    """What a header asks for, as far as it says so plainly; None where it does not."""

    nodes: int | None = None
    chunks: int | None = None
    """Pieces of nodes, where it is not said that each is on a node of its own."""
    tasks: int | None = None
    tasks_said: bool = False
    """Whether a number of tasks is given, be it a plain one or not."""
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus: bool = False
    """Whether GPUs are asked for in any way."""
    for_launchers: bool = False
    """Whether a launcher starts the tasks of the header where its own options do not say it."""
    starts_ranks: bool = False
    """Whether the scheduler itself starts processes on the nodes."""


@dataclass(frozen=True)
class Joined:
    """How the values of an option that is given twice can be joined into one."""

    separator: str
    form: str = r".+"
    """A regular expression for the values with which this can be done."""
    named: bool = False
    """Whether values are lists of names with counts or values, which must not name one twice."""


class Grammar(ABC):
    """How one scheduler reads the directives of a script. Holds no state.

    The rules of the schedulers that are here were read in their sources, and tried on running ones.
    """

    # ---- lines -----------------------------------------------------------------------------------
    name: ClassVar[str]
    """The scheduler's name in the registry."""
    title: ClassVar[str]
    """The scheduler's name in messages."""
    command: ClassVar[str]
    """What reads the script: `sbatch`."""
    marker: ClassVar[str]
    """What a directive begins with: `#SBATCH`."""
    needs_blank: ClassVar[bool] = False
    """Whether a line with the marker is a directive only if a blank follows."""
    refuses_crlf: ClassVar[bool] = True
    """Whether a script with DOS line ends is refused."""
    without_shebang: ClassVar[str] = ""
    """What the scheduler does with a script whose first line does not begin with `#!`, as the
    beginning of a sentence that `whose` follows; empty where it does not mind."""

    # ---- words -----------------------------------------------------------------------------------
    has_quotes: ClassVar[bool] = True
    """Whether quotes keep words together."""
    has_comments: ClassVar[bool] = False
    """Whether a `#` begins a comment behind the options of a directive."""
    quotes_keep_hash: ClassVar[bool] = True
    """Whether a `#` inside quotes begins no comment."""
    backslash: ClassVar[Literal["lost", "joins", "kept"]] = "lost"
    """What a backslash at the end of a directive does: it is lost, it joins the next line, or it is
    a word."""
    alone: ClassVar[frozenset[str]] = frozenset()
    """Words that are not options, and stand alone on their line."""

    # ---- options ---------------------------------------------------------------------------------
    options: ClassVar[OptionTable]
    related: ClassVar[OptionTable] = OptionTable()
    """Options that relatives of this scheduler have besides."""
    complete: ClassVar[bool] = False
    """Whether every other option is refused: no plug-in of a site can add one."""
    whole_words: ClassVar[bool] = False
    """Whether an option behind one dash is the whole word (`-cwd`), and not a group of letters."""
    values: ClassVar[Mapping[str, int]] = {}
    """Options that take more than one word for their value, with the number of words."""
    lines_apart: ClassVar[bool] = False
    """Whether each directive is a command line of its own. Otherwise the words of all directives
    are one, and a value may stand on the next line."""
    stops_at_stray: ClassVar[bool] = False
    """Whether a word that belongs to no option silences all options behind it. Otherwise the script
    is refused."""
    long_separator: ClassVar[Literal["=", " "]] = "="
    """What is written between a `--long` option and its value."""
    paths: ClassVar[frozenset[str]] = frozenset()
    """Options whose values are paths, in which `~` has no meaning."""

    # ---- what options mean -----------------------------------------------------------------------
    keys: ClassVar[Mapping[str, str]] = {}
    """Generated options, each with the key of a job file that it comes from."""
    joined: ClassVar[Mapping[str, Joined]] = {}
    """Options whose values can be joined."""

    # ---- what scripts for this scheduler use -----------------------------------------------------
    once_a_node: ClassVar[str] = "mpiexec -n NODES --ppn 1"
    """The launcher that starts a command once on each node."""
    job_number: ClassVar[str] = "$$"
    """The job's number, as an operand of the shell's arithmetic."""
    first_node: ClassVar[str] = "$(hostname)"
    """The name of the job's first node, as a word of the batch script."""
    launchers: ClassVar[Mapping[str, OptionTable]] = {}
    """Launchers whose options are those of directives and some more."""

    @property
    def instead_of_variables(self) -> str:
        """What to write where somebody has written a shell variable into a directive."""
        return f"write the value out, or give the option on {self.command}'s command line"

    @abstractmethod
    def split(self, text: str, line: int = 1) -> Split:
        """The words of a directive: `text` is what follows the marker."""

    def text_of(self, line: str) -> str | None:
        """What follows the marker in a directive; None for a line that is none."""
        marker = f"{self.marker} " if self.needs_blank else self.marker
        return line.removeprefix(marker) if line.startswith(marker) else None

    def goes_on(self, line: str, number: int) -> bool:
        """Whether the scan goes on behind a line that is not a directive; lines count from 1."""
        bare = line.strip(BLANKS)
        return not bare or bare.startswith("#")

    def why_unread(self, line: str) -> str | None:
        """Why a line that has the marker behind blanks, or at its beginning, is not a directive;
        None where it is one."""
        if self.text_of(line) is not None:
            return None
        if not line.startswith(self.marker):
            return "blanks before the marker"
        return f"not exactly one `{self.marker}` and a blank"

    def ends_with_backslash(self, text: str) -> bool:
        """Whether the last letter of a directive is a backslash that nothing escapes."""
        text = text.rstrip(BLANKS)
        return (len(text) - len(text.rstrip("\\"))) % 2 == 1

    def read(self, lines: Sequence[str]) -> Header:
        """The directives of a script with these lines. A missing `#!` line is not reported."""
        found: list[Directive] = []
        joined = 0  # the last line that has been joined to one before
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
        """Whether the directives of a header were written for this scheduler. A marker that begins
        other comments too needs more than one line with it."""
        return bool(header.directives)

    # ---- options ---------------------------------------------------------------------------------

    def parse(self, header: Header) -> Options:
        """The options of a header."""
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
        """The options of a single directive, which has no marker."""
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
        """Add the option at `at`. Returns where the next one may be."""
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
            # A plug-in's option: what follows on its line may be its value.
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
            # It swallows an option of the next line: surely not meant. Go on as if it did not.
            result.no_value.append(Option(name, spelling, following.text, word))
            return at + 1
        result.options.append(Option(name, spelling, following.text, word, following))
        return at + 2

    def _add_short(self, words: Sequence[OptionWord], at: int, result: Options) -> int:
        """A word of letters: flags, and at last one with a value, in the same word or the next."""
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
        """A word that is an option as a whole, and the words of its value."""
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
        """The entries of an option whose entries add up when it is given again, each as its name
        and its text; None for other options."""
        return None

    def first_counts(self, option: str) -> bool:
        """Whether the first of several options of that name counts, and not the last. The name of
        one of the `entries` of an option is `OPTION ENTRY`."""
        return False

    def without_own_variables(self, option: Option) -> str:
        """The value of an option less the variables that the scheduler fills in there."""
        return option.value or ""

    def requested(self, options: Options) -> Requested:
        """What the options ask for."""
        return Requested()


def number(text: str | None) -> int | None:
    """A plain count; None for anything else."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


def tasks_on_each(per_node: str | None, tasks: str | None, nodes: int | None) -> int | None:
    """Tasks on each node by two options of a launcher; 1 without either, None if it depends."""
    if per_node is not None:
        return number(per_node)
    if tasks is None:
        return 1
    count = number(tasks)
    if count is None or (nodes is None and count > 1):
        return None
    return -(-count // (nodes or 1))
