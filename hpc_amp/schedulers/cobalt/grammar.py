"""How Cobalt's qsub reads directives. Taken from its sources, and tested on Cobalt 1.0.33.

Directives begin with `#COBALT` and a blank at column 0, from line 2 on. The first line that is not
a directive ends them. Blanks separate words; quotes, backslashes and `#` are ordinary characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from hpc_amp.schedulers.grammar import Grammar, Option, Options, Requested, number
from hpc_amp.schedulers.options import OptionTable, spellings
from hpc_amp.schedulers.words import Split, plain_words

_WITH_VALUE = """
n/nodecount t/time A/project q/queue attrs env o/output e/error debuglog O/outputprefix i/inputfile
cwd jobname dependencies M/notify u/umask run_users proccount mode kernel K/kerneloptions
ion_kernel ion_kerneloptions geometry user_list
"""
_FLAGS = """
h/held preemptable run_project disable_preboot I/interactive d/debug v/verbose version help
"""
# Variables that the server replaces in the options `_FILLED_IN`.
_OWN_VARIABLE = r"\$(?:\{?COBALT_JOBID\b\}?|\{?jobid\b\}?)"
_FILLED_IN = {"env", "jobname", "output", "error", "outputprefix", "debuglog"}


class CobaltGrammar(Grammar):
    """The grammar of Cobalt's qsub. Plug-ins cannot add options."""

    name = "cobalt"
    title = "Cobalt"
    command = "qsub"
    marker = "#COBALT"
    needs_blank = True
    refuses_crlf = False
    without_shebang = "Cobalt reads no directive of a script"

    has_quotes = False
    backslash = "kept"

    options = OptionTable(spellings(_WITH_VALUE), spellings(_FLAGS))
    complete = True
    stops_at_stray = True
    long_separator = " "
    paths = frozenset({"output", "error", "outputprefix", "debuglog", "inputfile", "cwd"})

    counts_minutes = True
    keys: ClassVar[Mapping[str, str]] = {
        "nodecount": "job.nodes",
        "time": "job.walltime",
        "queue": "job.queue",
        "project": "job.account",
    }

    once_a_node = 'mpirun -n NODES --hostfile "$COBALT_NODEFILE" --map-by ppr:1:node'
    job_number = "COBALT_JOBID"
    first_node = '$(head -n1 "$COBALT_NODEFILE")'

    def split(self, text: str, line: int = 1) -> Split:
        """Split as qsub does."""
        return plain_words(text, line)

    def goes_on(self, line: str, number: int) -> bool:
        """Line 1 is the interpreter's and is skipped, whatever it contains."""
        return number == 1

    def entries(self, option: Option) -> list[tuple[str, str]] | None:
        """The entries of `--attrs` and `--env`. In `--env`, a colon separates only if a name and
        `=` follow."""
        if option.name not in ("attrs", "env"):
            return None
        separator = r":(?=\w+=)" if option.name == "env" else ":"
        items = re.split(separator, option.value or "")
        return [(item.partition("=")[0], item) for item in items]

    def without_own_variables(self, option: Option) -> str:
        """The value without the variables for the job's id, which the server replaces."""
        value = option.value or ""
        return re.sub(_OWN_VARIABLE, "", value) if option.name in _FILLED_IN else value

    def requested(self, options: Options) -> Requested:
        """The resources of the options. Every mode except `script` and `interactive` starts
        processes on all nodes."""
        return Requested(
            nodes=number(options.last("nodecount")),
            starts_ranks=options.last("mode") not in (None, "script", "interactive"),
        )


GRAMMAR = CobaltGrammar()
