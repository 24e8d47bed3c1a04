"""The findings of `hpc-amp migrate`: place, problem, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import libcst as cst

from hpc_amp.finding import FileFinding
from hpc_amp.migrate.edits import Edit
from hpc_amp.migrate.rules import RULES
from hpc_amp.migrate.script import SourceScript


@dataclass(frozen=True, slots=True)
class MigrationFinding(FileFinding):
    """A place in a script that has to be changed or looked at. `fix` is what to write instead."""

    edits: tuple[Edit, ...] = ()
    """The changes of `--write`. Empty if a person must decide."""
    written: bool = False
    """Whether `--write` has made them."""
    note: str = ""
    """What to check after the change."""

    @property
    def mechanical(self) -> bool:
        """Whether `--write` changes this place."""
        return bool(self.edits)

    def to_plain(self) -> dict[str, Any]:
        """The finding as a dictionary of JSON values, without the edits themselves."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        del plain["edits"]
        return {**plain, "mechanical": self.mechanical}

    def details(self) -> list[str]:
        """The lines below the first one, for a terminal."""
        lines = [self.fix]
        if self.mechanical:
            lines = [f"{self.fix}  [{'written' if self.written else '--write'}]"]
        if self.note:
            lines.append(f"then check: {self.note}")
        return lines


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
        **texts: str,
    ) -> None:
        """Add a finding of `rule` at `node`.

        `edits` are the changes of `--write`. `left_because` is the reason why a mechanical change
        is not made here, and `note` says what to check after it. `texts` fill the texts of the
        rule; `code` is the text of the node by default.
        """
        line, column = self._script.place(node)
        texts.setdefault("code", self._script.shown(node))
        instead = RULES[rule].instead.format(**texts)
        if left_because:
            instead += f"; not changed: {left_because}"
        finding = MigrationFinding(
            rule,
            "warning",
            RULES[rule].message.format(**texts),
            fix=instead,
            file=self._script.name,
            line=line,
            column=column,
            edits=edits,
            note=note,
        )
        self._found.setdefault((line, column, rule), finding)

    def findings(self) -> list[MigrationFinding]:
        """Return all findings, sorted by place."""
        return [self._found[key] for key in sorted(self._found)]
