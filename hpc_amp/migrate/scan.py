"""All rules, on one script."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import libcst as cst

from hpc_amp.migrate.apex_parts import EXTENSIONS
from hpc_amp.migrate.edits import changed
from hpc_amp.migrate.exchange import exchange
from hpc_amp.migrate.finding import MigrationFinding, ScriptFindings
from hpc_amp.migrate.moves import APEX_AMP, TORCH, Move, Version, apex_parallel
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.rules_apex_needed import check_apex_needed
from hpc_amp.migrate.rules_apex_parts import check_apex_parts
from hpc_amp.migrate.rules_apex_use import check_apex_use
from hpc_amp.migrate.rules_half import check_half
from hpc_amp.migrate.rules_native import check_native
from hpc_amp.migrate.rules_scaler import check_scaler_order
from hpc_amp.migrate.rules_torch import check_torch
from hpc_amp.migrate.script import SourceScript

Target = Literal["drop-in", "native"]
# Without one of these words there is nothing to find, and no need to parse.
_NAMES = re.compile(
    r"\bapex\b|\bamp\b|autocast|GradScaler|unscale_|" + "|".join(map(re.escape, EXTENSIONS))
)
_BY_HAND = re.compile(r"scale|half|float", re.IGNORECASE)


def scan(
    text: str, name: str, target: Target, torch: Version, ignored: Collection[str] = ()
) -> tuple[list[MigrationFinding], str]:
    """What is found in a script, in the order of its text, and the script with all mechanical
    changes made. Of `ignored` rules only these are told. Raises libcst.ParserSyntaxError."""
    if not (_NAMES.search(text) or (".backward(" in text and _BY_HAND.search(text))):
        return [], text
    program = MigratedProgram(SourceScript(text, name))
    report = ScriptFindings(program.script)
    moves: dict[str, Move] = {**TORCH, **apex_parallel(torch)}
    if target == "drop-in":
        moves |= APEX_AMP
    exchange(program, moves, torch, report)
    if target == "native":
        check_native(program, report)
    check_apex_parts(program, report)
    check_apex_needed(program, report)
    check_apex_use(program, report)
    check_torch(program, report)
    check_scaler_order(program, report)
    check_half(program, report)
    findings = report.findings()
    if program.script.module.code != text:
        findings = _not_to_be_changed(findings)
    findings = [
        replace(one, note="") if one.rule in ignored else one
        for one in findings
        if one.mechanical or one.rule not in ignored
    ]
    edits = [edit for finding in findings for edit in finding.edits]
    if not edits:
        return findings, text
    return findings, cst.ensure_type(changed(program.script.module, edits), cst.Module).code


def _not_to_be_changed(findings: Sequence[MigrationFinding]) -> list[MigrationFinding]:
    """The findings of a script that libcst does not write as it read it (a form feed, a lone
    carriage return)."""
    why = "left alone: this file has control characters that would get lost"
    return [
        replace(one, edits=(), instead=f"{one.instead}; {why}") if one.mechanical else one
        for one in findings
    ]
