"""How Grid Engine's qsub reads directives. Tested on Son of Grid Engine 8.1.9;
tests/unit/test_gridengine.py has the results.

qsub reads every line of the script that begins with `#$`, even in a here-document. `#` ends a line,
also inside quotes. Quotes are removed. After the first quote, blanks do not separate words up to
the end of the line: `-N "a" -j y` gives a job the name `a -j y`. A backslash is an ordinary
character. If an option is repeated, the last one counts, but resources (`-l`) and variables (`-v`)
are merged by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from hpc_amp.errors import ConfigError
from hpc_amp.schedulers.grammar import Grammar, Header, Option, Options, Requested
from hpc_amp.schedulers.options import OptionTable
from hpc_amp.schedulers.words import OptionWord, Split

_FLAGS = "clear cwd h hard help notify soft terse V verify"
_WITH_VALUE = """
@ a ac A ar b binding c C ckpt dc display dl e hold_jid hold_jid_ad i j js jsv l m M masterq N now o
p P pe pty q R r S sc shell sync t tc v w wd
"""
# Variables that Grid Engine replaces in the paths of logs and of the working directory.
_OWN_VARIABLE = r"\$(?:HOME|USER|JOB_ID|JOB_NAME|HOSTNAME|TASK_ID)\b|\$\$"
_PATHS = frozenset({"o", "e", "i", "wd"})
_BLANKS = " \t\r"


def _spelled(names: str) -> dict[str, str]:
    return {f"-{name}": name for name in names.split()}


class GridEngineGrammar(Grammar):
    """The grammar of Grid Engine's qsub. An option is a whole word after one dash."""

    name = "gridengine"
    title = "Grid Engine"
    command = "qsub"
    marker = "#$"
    refuses_crlf = False

    has_comments = True
    quotes_keep_hash = False
    backslash = "kept"

    options = OptionTable(_spelled(_WITH_VALUE), _spelled(_FLAGS))
    complete = True
    whole_words = True
    values: ClassVar[Mapping[str, int]] = {"pe": 2}
    lines_apart = True
    paths = _PATHS

    keys: ClassVar[Mapping[str, str]] = {
        "l h_rt": "job.walltime",
        "q": "job.queue",
        "P": "job.account",
    }

    job_number = "JOB_ID"
    first_node = '$(head -n1 "$PE_HOSTFILE" | cut -d" " -f1)'

    def split(self, text: str, line: int = 1) -> Split:
        """Split as qsub does."""
        text, mark, comment = text.partition("#")
        quote = re.search("[\"']", text)
        is_open = quote is not None and text.count(quote[0]) % 2 == 1
        cut = mark != "" and (is_open or text[-1:] not in ("", *_BLANKS))
        # The word with the first quote continues to the end of the line.
        before = text if quote is None else re.sub(rf"[^{_BLANKS}]*$", "", text[: quote.start()])
        words = [OptionWord(word, line) for word in re.findall(rf"[^{_BLANKS}]+", before)]
        if quote is not None:
            rest = re.sub("[\"']", "", text[len(before) :]).rstrip(_BLANKS)
            words.append(OptionWord(rest, line, quoted=True))
        return Split(tuple(words), comment=mark + comment if mark else None, cut=cut)

    def goes_on(self, line: str, number: int) -> bool:
        """qsub reads the whole script."""
        return True

    def is_meant(self, header: Header) -> bool:
        """A comment may begin with the marker too. The directives are meant for this scheduler if
        one of them begins with an option."""
        first = (one.split.words[0].text for one in header.directives if one.split.words)
        return any(word.startswith("-") for word in first)

    def entries(self, option: Option) -> list[tuple[str, str]] | None:
        """The entries of `-l` (resources) and `-v` (variables)."""
        if option.name not in ("l", "v"):
            return None
        items = (option.value or "").split(",")
        return [(item.partition("=")[0], item) for item in items]

    def without_own_variables(self, option: Option) -> str:
        """The value without the variables that Grid Engine replaces in paths."""
        value = option.value or ""
        return re.sub(_OWN_VARIABLE, "", value) if option.name in _PATHS else value

    def requested(self, options: Options) -> Requested:
        """The resources of the options. The parallel environment decides on how many nodes slots
        are; a job without one has a single slot."""
        resources = [name for option in options.all("l") for name, _ in self.entries(option) or ()]
        return Requested(
            nodes=None if options.all("pe") else 1,
            gpus=any("gpu" in name for name in resources),
        )


GRAMMAR = GridEngineGrammar()


def names_of(line: str) -> set[str]:
    """The options that a directive sets. Each resource (`-l h_rt`) and each variable (`-v NAME`)
    counts as an option of its own."""
    names = set()
    for option in GRAMMAR.parse_line(line).options:
        entries = GRAMMAR.entries(option)
        if entries is None:
            names.add(option.spelling)
        else:
            names |= {f"{option.spelling} {name}" for name, _ in entries}
    return names


def written(value: str) -> str:
    """Quote a value for a directive. Raises ConfigError if no directive can contain it."""
    found = re.search(r"[\"'#\x00-\x1f\x7f]", value)
    if found is not None:
        raise ConfigError(
            f"Grid Engine cannot pass on {value!r}: in a directive {found[0]!r} cannot be part of "
            "a value, even if it is quoted"
        )
    return f'"{value}"' if value == "" or re.search(r"[ \t]", value) else value
