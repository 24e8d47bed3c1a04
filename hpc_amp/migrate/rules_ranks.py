"""Rules about the rank of a process."""

from __future__ import annotations

from hpc_amp.config.command import reads_local_rank
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import argument, text_of

_NAMES = ("--local_rank", "--local-rank")


def check_ranks(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    if reads_local_rank(program.script.text):
        return
    for call, _ in program.methods("add_argument"):
        if any(text_of(arg.value) in _NAMES for arg in call.args):
            default = argument(call, "default")
            shown = "None" if default is None else program.script.code(default)
            report.add("local-rank-argument", call, default=shown)
