"""Apply all rules to one script."""

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
from hpc_amp.migrate.rules_ranks import check_ranks
from hpc_amp.migrate.rules_scaler import check_scaler_order
from hpc_amp.migrate.rules_torch import check_torch
from hpc_amp.migrate.script import SourceScript

Target = Literal["drop-in", "native"]
# A script without any of these words has no findings, so it is not parsed.
_NAMES = re.compile(
    r"\bapex\b|\bamp\b|autocast|GradScaler|unscale_|--local[-_]rank|"
    + "|".join(map(re.escape, EXTENSIONS))
)
_BY_HAND = re.compile(r"scale|half|float", re.IGNORECASE)


def scan(
    text: str, name: str, target: Target, torch: Version, ignored: Collection[str] = ()
) -> tuple[list[MigrationFinding], str]:
    """Return the findings in a script, sorted by place, and its text with all mechanical changes.

    `name` is the file name for messages, `target` what replaces apex.amp, and `torch` the oldest
    version to support. For rules in `ignored`, only mechanical changes are returned. Raises
    libcst.ParserSyntaxError.
    """
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
    check_ranks(program, report)
    findings = report.findings()
    if program.script.module.code != text:
        findings = _not_to_be_changed(findings)
    findings = [
        replace(one, note="") if one.id in ignored else one
        for one in findings
        if one.mechanical or one.id not in ignored
    ]
    edits = [edit for finding in findings for edit in finding.edits]
    if not edits:
        return findings, text
    return findings, cst.ensure_type(changed(program.script.module, edits), cst.Module).code


def _not_to_be_changed(findings: Sequence[MigrationFinding]) -> list[MigrationFinding]:
    """Remove all changes from the findings of a script that libcst cannot write without loss.

    Examples are scripts with a form feed or a single carriage return.
    """
    why = "not changed: this file has control characters that would be lost"
    return [
        replace(one, edits=(), fix=f"{one.fix}; {why}") if one.mechanical else one
        for one in findings
    ]
