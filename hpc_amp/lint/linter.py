"""All rules, on one script."""

from __future__ import annotations

from hpc_amp.lint.directives import SCHEDULERS, SchedulerName
from hpc_amp.lint.findings import Finding, Report
from hpc_amp.lint.header import check_header
from hpc_amp.lint.job import Job, read_job
from hpc_amp.lint.rules_body import check_body
from hpc_amp.lint.rules_containers import check_containers
from hpc_amp.lint.rules_lines import check_file, has_header
from hpc_amp.lint.rules_ranks import check_ranks
from hpc_amp.lint.rules_rendezvous import check_rendezvous
from hpc_amp.lint.rules_resources import check_resources
from hpc_amp.lint.rules_signal import check_signals
from hpc_amp.lint.rules_starts import check_starts
from hpc_amp.lint.script import read_script

_BODY_CHECKS = (
    check_body,
    check_signals,
    check_starts,
    check_ranks,
    check_resources,
    check_rendezvous,
    check_containers,
)


def lint(text: bytes, name: str) -> list[Finding]:
    """All findings about a script, in the order of its lines."""
    script = read_script(text, name)
    job = read_job(script)
    schedulers = _schedulers(job)
    report = Report(name)
    check_file(script, schedulers, report)
    for scheduler in schedulers:
        check_header(script, scheduler, job, report)
    if job.shell is not None:
        for check in _BODY_CHECKS:
            check(job, report)
    return report.findings()


def schedulers_of(text: bytes) -> list[SchedulerName]:
    """The schedulers whose directives a script has, well or badly written."""
    return _schedulers(read_job(read_script(text, "")))


def _schedulers(job: Job) -> list[SchedulerName]:
    return [one for one in SCHEDULERS if has_header(job.script, one, job.layout)]
