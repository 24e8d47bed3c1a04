"""The findings of `hpc-amp migrate`: place, problem, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from hpc_amp.migrate.edits import Edit
from hpc_amp.migrate.rules import RULES
from hpc_amp.migrate.script import SourceScript


@dataclass(frozen=True)
class MigrationFinding:
    """A place in a script.

    `edits` are the changes of `--write`; they are empty if a person must decide. `note` says what
    to check after the change. `cell` is the number of a code cell in a notebook.
    """

    file: str
    line: int
    column: int
    rule: str
    message: str
    instead: str
    edits: tuple[Edit, ...] = ()
    cell: int | None = None
    note: str = ""

    @property
    def mechanical(self) -> bool:
        """Whether `--write` changes this place."""
        return bool(self.edits)

    def to_plain(self) -> dict[str, str | int | bool | None]:
        """As a JSON object."""
        return {
            "file": self.file,
            "cell": self.cell,
            "line": self.line,
            "column": self.column,
            "rule": self.rule,
            "message": self.message,
            "instead": self.instead,
            "mechanical": self.mechanical,
            "note": self.note,
        }

    def shown(self, *, written: bool = False) -> str:
        """Return lines for a terminal. `written` says whether the change has been made."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        lines = [f"{self.file}:{cell}{self.line}:{self.column}: {self.rule} {self.message}"]
        if self.mechanical:
            lines.append(f"    {self.instead}  [{'written' if written else '--write'}]")
        else:
            lines.append(f"    {self.instead}")
        if self.note:
            lines.append(f"    then check: {self.note}")
        return "\n".join(lines)


class ScriptFindings:
    """Collects the findings of one script: at most one for each rule and place."""

    def __init__(self, script: SourceScript) -> None:
        self._script = script
        self._found: dict[tuple[int, int, str], MigrationFinding] = {}

    def add(
        self,
        rule: str,
        node: cst.CSTNode,
        *edits: Edit,
        left_because: str = "",
        note: str = "",
        **fields: str,
    ) -> None:
        """Add a finding of `rule` at `node`.

        `edits` are the changes of `--write`. `left_because` is the reason why a mechanical change
        is not made here, and `note` says what to check after it. `fields` fill the texts of the
        rule; `code` is the text of the node by default.
        """
        line, column = self._script.place(node)
        fields.setdefault("code", self._script.shown(node))
        instead = RULES[rule].instead.format(**fields)
        if left_because:
            instead += f"; not changed: {left_because}"
        finding = MigrationFinding(
            self._script.name,
            line,
            column,
            rule,
            RULES[rule].message.format(**fields),
            instead,
            edits,
            note=note,
        )
        self._found.setdefault((line, column, rule), finding)

    def findings(self) -> list[MigrationFinding]:
        """Return all findings, sorted by place."""
        return [self._found[key] for key in sorted(self._found)]
