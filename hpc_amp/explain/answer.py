"""The answer of `hpc-amp explain`, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpc_amp.explain.failures import fill
from hpc_amp.explain.lines import Line
from hpc_amp.explain.match import Match, Verdict

_SHOWN = 240
_CONSEQUENCE = "this follows from an error that is not known: look at the lines before it"


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation of a log or a run."""

    subject: str
    """The path of the log or of the run directory."""
    verdict: Verdict
    remarks: tuple[str, ...] = field(default=())

    @property
    def named(self) -> bool:
        """Whether a known failure was found."""
        return self.verdict.finding is not None

    @property
    def confidence(self) -> str | None:
        """How certain the cause is: `high`, `medium` or `low`, or None without a cause.

        A symptom is always `low`, and a likely cause is `medium` at most.
        """
        finding = self.verdict.finding
        if finding is None:
            return None
        if finding.level == "symptom":
            return "low"
        if finding.level == "likely" and finding.failure.confidence == "high":
            return "medium"
        return finding.failure.confidence

    def to_plain(self) -> dict[str, Any]:
        """For JSON. Without a known cause, `cause` and `fix` are null and `first_error` is set."""
        finding = self.verdict.finding
        return {
            "subject": self.subject,
            "failure": finding.failure.id if finding else None,
            "cause": _cause(finding) if finding else None,
            "evidence": _evidence(finding.line) if finding else None,
            "fix": _fix(finding) if finding else None,
            "confidence": self.confidence,
            "consequence": bool(finding and finding.level == "symptom"),
            "why": (finding.failure.why or None) if finding else None,
            "first_error": _evidence(self.verdict.error) if self.verdict.error else None,
            "led_to": _evidence(self.verdict.led_to) if self.verdict.led_to else None,
            "words": _evidence(self.verdict.words) if self.verdict.words else None,
            "ended_well": self.verdict.ended_well,
            "noticed": [
                {
                    "failure": other.failure.id,
                    "text": _cause(other),
                    "fix": _fix(other),
                    "evidence": _evidence(other.line),
                }
                for other in self.verdict.noticed
            ],
            "remarks": list(self.remarks),
        }

    def to_text(self) -> str:
        """For people."""
        rows: list[tuple[str, str]] = []
        finding, error = self.verdict.finding, self.verdict.error
        if finding is not None:
            rows += [("cause", _cause(finding)), ("evidence", _shown(finding.line))]
            rows += [("fix", _fix(finding))]
            if finding.level == "symptom":
                rows.append(("note", _CONSEQUENCE))
                if self.verdict.words is not None:
                    rows.append(("also said", _shown(self.verdict.words)))
            elif finding.failure.why:
                rows.append(("why", finding.failure.why))
            rows.append(("confidence", self.confidence or ""))
        elif self.verdict.ended_well:
            rows.append(("cause", "nothing failed: the job ended normally"))
        elif error is not None:
            rows += [("cause", "not known"), ("first error", _shown(error))]
            if self.verdict.led_to is not None:
                rows.append(("led to", _shown(self.verdict.led_to)))
        elif self.verdict.sign is not None:
            rows.append(("cause", "not known; the log only says that something failed"))
            rows.append(("a failure", _shown(self.verdict.sign)))
        else:
            rows.append(("cause", "not known; the log contains no error"))
        rows += [
            ("also seen", f"{_cause(other)} ({_shown(other.line)}). {_fix(other)}")
            for other in self.verdict.noticed[:3]
        ]
        rows += [("note", remark) for remark in self.remarks]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def in_short(self) -> list[tuple[str, str]]:
        """Rows for the summary of a run: the cause and the fix, else the first error."""
        finding, error = self.verdict.finding, self.verdict.error
        if finding is not None:
            sure = "" if self.confidence == "high" else f" (confidence: {self.confidence})"
            return [("cause", _cause(finding) + sure), ("fix", _fix(finding))]
        if error is not None:
            return [("first error", _shown(error))]
        return []


def _cause(finding: Match) -> str:
    return fill(finding.failure.cause, finding.captured)


def _fix(finding: Match) -> str:
    return fill(finding.failure.fix, finding.captured)


def _evidence(line: Line) -> dict[str, Any]:
    return {
        "file": line.source,
        "line": line.number,
        "rank": line.rank,
        "text": line.shown.strip()[: 2 * _SHOWN],
    }


def _shown(line: Line) -> str:
    rank = "" if line.rank is None else f"rank {line.rank}: "
    labelled = line.speaker is not None and line.rank is not None
    text = line.text if labelled else line.shown
    return f"{line.place}: {rank}{text.strip()[:_SHOWN]}"
