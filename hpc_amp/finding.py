"""What one check says, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["good", "warning", "error", "unknown"]

_MARKS: dict[Status, str] = {"good": "ok  ", "warning": "WARN", "error": "FAIL", "unknown": "?   "}


@dataclass(frozen=True, slots=True)
class Finding:
    """The ids are those of the catalogue (docs/doctor.md)."""

    id: str
    status: Status
    """`unknown`: it cannot be checked here, and `what` says why."""
    what: str
    why: str = ""
    fix: str = ""
    where: str = "login"
    """`login` (this machine), `image`, or the names of nodes."""

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


Findings = Iterator[Finding]


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether something is wrong for certain."""
    return any(finding.status == "error" for finding in findings)


def to_text(findings: list[Finding]) -> str:
    """One line a check, with why and what to do below all that is not good. Checks that cannot be
    made for the same reason share a line."""
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
