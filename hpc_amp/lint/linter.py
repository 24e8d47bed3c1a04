"""Apply all rules to one script."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_amp.finding import FileFinding
from hpc_amp.lint.findings import FileFindings
from hpc_amp.lint.header import check_header
from hpc_amp.lint.job import read_job
from hpc_amp.lint.rules_body import check_body
from hpc_amp.lint.rules_containers import check_containers
from hpc_amp.lint.rules_lines import check_file, has_header
from hpc_amp.lint.rules_ranks import check_ranks
from hpc_amp.lint.rules_rendezvous import check_rendezvous
from hpc_amp.lint.rules_resources import check_resources
from hpc_amp.lint.rules_signal import check_signals
from hpc_amp.lint.rules_starts import check_starts
from hpc_amp.lint.script import read_script
from hpc_amp.schedulers import grammars

_BODY_CHECKS = (
    check_body,
    check_signals,
    check_starts,
    check_ranks,
    check_resources,
    check_rendezvous,
    check_containers,
)


@dataclass(frozen=True)
class Checked:
    """One script and its findings. `schedulers` are those for which it has directives."""

    name: str
    schedulers: tuple[str, ...]
    findings: tuple[FileFinding, ...]

    def __str__(self) -> str:
        if self.findings:
            return "\n".join(str(finding) for finding in self.findings)
        return f"{self.name}: no findings ({', '.join(self.schedulers) or 'no directives'})"


def check(text: bytes, name: str) -> Checked:
    """Check a script. `name` is the file name for messages."""
    script = read_script(text, name)
    job = read_job(script, grammars())
    meant = [one for one in job.grammars if has_header(script, one, job.layout)]
    report = FileFindings(name)
    check_file(script, meant, report)
    for grammar in meant:
        check_header(script, grammar, job, report)
    if job.shell is not None:
        for check_part in _BODY_CHECKS:
            check_part(job, report)
    return Checked(name, tuple(one.name for one in meant), tuple(report.findings()))


def lint(text: bytes, name: str) -> list[FileFinding]:
    """Return all findings in a script, sorted by line."""
    return list(check(text, name).findings)
