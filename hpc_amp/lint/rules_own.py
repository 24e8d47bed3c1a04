"""The rules that belong to one scheduler. They are imported if a script has its directives."""

from __future__ import annotations

from hpc_amp.lint.findings import FileFindings
from hpc_amp.registry import load
from hpc_amp.schedulers.grammar import Header, Options

_CHECKS = {
    "slurm": "hpc_amp.lint.rules_slurm:check_slurm",
    "pbs": "hpc_amp.lint.rules_pbs:check_pbs",
    "gridengine": "hpc_amp.lint.rules_gridengine:check_gridengine",
    "cobalt": "hpc_amp.lint.rules_cobalt:check_cobalt",
}


def check_own(header: Header, options: Options, report: FileFindings) -> None:
    """Apply the rules of the header's scheduler, if it has its own."""
    place = _CHECKS.get(header.grammar.name)
    if place is not None:
        load(place)(header, options, report)
