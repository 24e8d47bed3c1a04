"""The result of one check of `doctor` or the preflight, and how results are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["good", "warning", "error", "unknown"]

_MARKS: dict[Status, str] = {"good": "ok  ", "warning": "WARN", "error": "FAIL", "unknown": "?   "}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    id: str
    """The check's id in the catalogue, docs/doctor.md."""
    status: Status
    """`unknown`: the check cannot be made here, and `what` gives the reason."""
    what: str
    why: str = ""
    fix: str = ""
    where: str = "login"
    """The place that was checked: `login` (this machine), `image`, or names of nodes."""

    def to_plain(self) -> dict[str, Any]:
        """The finding as a dictionary of JSON values."""
        return asdict(self)


Findings = Iterator[Finding]


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether any finding has the status `error`."""
    return any(finding.status == "error" for finding in findings)


def to_text(findings: list[Finding]) -> str:
    """The findings as text: one line for each check, followed by the cause and the remedy where
    the status is not `good`, and a last line with the counts. Checks with the same status and the
    same text share one line."""
    together: dict[tuple[Status, str], list[str]] = {}
    for finding in findings:
        key = (finding.status, finding.what)
        together.setdefault(key, []).append(finding.id)
    lines, said = [], set()
    width = max((len(finding.id) for finding in findings), default=0)
    for finding in findings:
        ids = together[finding.status, finding.what]
        if (finding.status, finding.what) in said:
            continue
        said.add((finding.status, finding.what))
        name = ", ".join(ids)
        lines.append(f"{_MARKS[finding.status]}  {name:<{width}}  {finding.what}")
        if finding.status != "good":
            lines += [f"      {text}" for text in (finding.why, finding.fix) if text]
    counts = {status: sum(f.status == status for f in findings) for status in _MARKS}
    lines.append(
        f"{counts['good']} good, {counts['warning']} warning(s), {counts['error']} error(s), "
        f"{counts['unknown']} not checked here"
    )
    return "\n".join(lines)
