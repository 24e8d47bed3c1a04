"""Findings: what `doctor`, `lint`, `migrate` and the preflight of a job report.

The preflight runs in the image, so this module needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["good", "warning", "error", "unknown"]
"""`good`: a check found no problem. `warning`: this often fails, or somebody should look at it.
`error`: this fails. `unknown`: the check cannot be made here."""

_MARKS: dict[Severity, str] = {
    "good": "ok  ",
    "warning": "WARN",
    "error": "FAIL",
    "unknown": "?   ",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check or rule has found in one place."""

    id: str
    """The id of the check (docs/doctor.md) or of the rule (docs/lint.md, docs/migrate.md)."""
    severity: Severity
    what: str
    """What is right or wrong. If the severity is `unknown`: why the check cannot be made."""
    why: str = ""
    """Why that matters."""
    fix: str = ""
    """What to do."""
    where: str = "login"
    """The place: `login` (this machine), `image`, names of nodes, or a line of a file."""

    def to_plain(self) -> dict[str, Any]:
        """The finding as a dictionary of JSON values."""
        return asdict(self)

    def details(self) -> list[str]:
        """The lines below the first one, for a terminal: the cause and the remedy."""
        return [text for text in (self.why, self.fix) if text]


@dataclass(frozen=True, slots=True)
class FileFinding(Finding):
    """A finding in a line of a file. `where` is derived from the fields."""

    file: str = ""
    line: int = 0
    """From 1 on."""
    column: int | None = None
    """From 1 on; None for the whole line."""
    cell: int | None = None
    """The number of the code cell in a notebook, from 1 on."""

    def __post_init__(self) -> None:
        places = [self.file, str(self.line)]
        if self.cell is not None:
            places.insert(1, f"cell {self.cell}")
        if self.column is not None:
            places.append(str(self.column))
        object.__setattr__(self, "where", ":".join(places))

    def __str__(self) -> str:
        first = f"{self.where}: {self.severity} [{self.id}] {self.what}"
        return "\n    ".join([first, *self.details()])


Findings = Iterator[Finding]


def exit_status(findings: Iterable[Finding], *, strict: bool = False) -> int:
    """The exit status of a command with these findings: 1 if there is an error or, if `strict`, a
    warning; else 0."""
    severities = {finding.severity for finding in findings}
    return int("error" in severities or (strict and "warning" in severities))


def to_text(findings: Sequence[Finding]) -> str:
    """The findings of checks as text: one line for each check, followed by the cause and the remedy
    unless it is good, and a last line with the counts. Checks with the same severity and the same
    text share one line."""
    together: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        together.setdefault((finding.severity, finding.what), []).append(finding)
    width = max((len(finding.id) for finding in findings), default=0)
    lines = []
    for (severity, what), same in together.items():
        ids = ", ".join(finding.id for finding in same)
        lines.append(f"{_MARKS[severity]}  {ids:<{width}}  {what}")
        if severity != "good":
            lines += [f"      {text}" for text in same[0].details()]
    counts = {severity: sum(f.severity == severity for f in findings) for severity in _MARKS}
    lines.append(
        f"{counts['good']} good, {counts['warning']} warning(s), {counts['error']} error(s), "
        f"{counts['unknown']} not checked here"
    )
    return "\n".join(lines)
