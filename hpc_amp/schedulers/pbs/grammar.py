"""How qsub of PBS Professional reads directives. Taken from its sources, and tested on OpenPBS
23.06.

Directives begin with `#PBS`, which blanks may precede, and end at the first command. A backslash at
the end of a directive joins the next line to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from hpc_amp.schedulers.grammar import Grammar, Joined, Option, Options, Requested, number
from hpc_amp.schedulers.options import OptionTable, spellings
from hpc_amp.schedulers.words import BLANKS, Split, quoted_words

_WITH_VALUE = "a A c C e J j k l m M N o p P q r R S u v W"
_FLAGS = "f G h I V X z"
# Options of Torque's qsub that PBS Pro's does not have.
_TORQUE_WITH_VALUE = "b d D F K L t T w"
_TORQUE_FLAGS = "E n x"


class PbsGrammar(Grammar):
    """Quotes protect all characters in them, a backslash escapes outside of quotes only, and `#` is
    an ordinary character."""

    name = "pbs"
    title = "PBS"
    command = "qsub"
    marker = "#PBS"

    backslash = "joins"

    options = OptionTable(spellings(_WITH_VALUE), spellings(_FLAGS))
    related = OptionTable(spellings(_TORQUE_WITH_VALUE), spellings(_TORQUE_FLAGS))
    lines_apart = True
    paths = frozenset({"o", "e"})

    keys: ClassVar[Mapping[str, str]] = {
        "l walltime": "job.walltime",
        "q": "job.queue",
        "A": "job.account",
    }
    joined: ClassVar[Mapping[str, Joined]] = {"v": Joined(",", named=True)}

    job_number = "${PBS_JOBID%%[!0-9]*}"
    first_node = '$(head -n1 "$PBS_NODEFILE")'

    def split(self, text: str, line: int = 1) -> Split:
        """Split as qsub does."""
        return quoted_words(text, line, escapes_in_quotes=False, has_comments=False)

    def text_of(self, line: str) -> str | None:
        """The text after the marker, which blanks may precede."""
        return super().text_of(line.lstrip(BLANKS))

    def goes_on(self, line: str, number: int) -> bool:
        """Comments, empty lines, and lines that begin with the shell's empty command `:` without
        indentation do not end the directives."""
        return line.startswith(":") or super().goes_on(line, number)

    def entries(self, option: Option) -> list[tuple[str, str]] | None:
        """The entries of `-l` (resources) and `-W` (attributes)."""
        if option.name not in ("l", "W"):
            return None
        entries = resource_list(option.value or "")
        return [(name, name if value is None else f"{name}={value}") for name, value in entries]

    def first_counts(self, option: str) -> bool:
        """For resources, PBS uses the first of several values."""
        return option.startswith("l ")

    def without_own_variables(self, option: Option) -> str:
        """Empty for a log path with `$PBS_...`, which Torque and some sites replace. The linter has
        a rule of its own for these."""
        value = option.value or ""
        if option.name in ("o", "e") and "$PBS_" in value.replace("{", ""):
            return ""
        return value

    def requested(self, options: Options) -> Requested:
        """The resources of the options. The number of chunks is the number of nodes if the chunks
        are scattered, or if there is only one."""
        given = resources(options)
        if (nodes := given.get("nodes")) is not None:
            return Requested(nodes=number(nodes.partition(":")[0]))
        select = given.get("select")
        if select is None:
            return Requested()
        chunks = sum(number(chunk.partition(":")[0]) or 1 for chunk in select.split("+"))
        scattered = "scatter" in given.get("place", "") or ":system=" in select
        gpus = re.search(r":ngpus=(\d+)", select)
        return Requested(
            nodes=chunks if scattered or chunks == 1 else None,
            chunks=chunks,
            gpus_per_node=int(gpus[1]) if gpus and "+" not in select else None,
            gpus=gpus is not None,
        )


def resource_list(value: str) -> Iterable[tuple[str, str | None]]:
    """Yield the names and values of an option `-l name[=value],...`. Commas in quotes do not
    separate."""
    for part in re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", value):
        name, equals, rest = part.partition("=")
        yield name.strip(), rest.strip() if equals else None


def resources(options: Options) -> dict[str, str]:
    """The resources of a header by name. If one is repeated, the first value counts."""
    found: dict[str, str] = {}
    for option in options.all("l"):
        for name, value in resource_list(option.value or ""):
            found.setdefault(name, value or "")
    return found


GRAMMAR = PbsGrammar()
