"""Rules about the rank of a process."""

from __future__ import annotations

import re

from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import argument, text_of

# The variables that launchers set for each rank.
_VARIABLES = re.compile(r"LOCAL_RANK|LOCALID|LOCALRANKID")
_NAMES = ("--local_rank", "--local-rank")


def check_ranks(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    if _VARIABLES.search(program.script.text):
        return
    for call, _ in program.methods("add_argument"):
        if any(text_of(arg.value) in _NAMES for arg in call.args):
            default = argument(call, "default")
            shown = "None" if default is None else program.script.code(default)
            report.add("local-rank-argument", call, default=shown)
