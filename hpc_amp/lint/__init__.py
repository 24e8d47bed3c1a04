"""Checks launch scripts by the schedulers' real rules, ours and hand-written ones.

script.py, directives.py   what is in the file, and what each scheduler reads of it
options.py                 the words of directives as options with values
shell.py, job.py           the body: commands, variables, srun and mpirun
rules_*.py                 the rules, which tell a report what they find
findings.py                findings, and the list of all rules
"""

from __future__ import annotations

from hpc_amp.lint.directives import SCHEDULERS, SchedulerName, read_header
from hpc_amp.lint.findings import RULES, Finding, Report, Severity
from hpc_amp.lint.job import Job, read_job
from hpc_amp.lint.options import Options
from hpc_amp.lint.rules_body import check_body
from hpc_amp.lint.rules_cobalt import check_cobalt
from hpc_amp.lint.rules_containers import check_containers
from hpc_amp.lint.rules_lines import check_comments, check_file, check_lines, has_header
from hpc_amp.lint.rules_options import check_words
from hpc_amp.lint.rules_pbs import check_pbs
from hpc_amp.lint.rules_ranks import check_ranks
from hpc_amp.lint.rules_rendezvous import check_rendezvous
from hpc_amp.lint.rules_resources import check_resources
from hpc_amp.lint.rules_slurm import check_slurm
from hpc_amp.lint.script import Script, read_script

__all__ = [
    "RULES",
    "SCHEDULERS",
    "Finding",
    "SchedulerName",
    "Severity",
    "header_errors",
    "lint",
    "schedulers_of",
]

_BODY_CHECKS = (check_body, check_ranks, check_resources, check_rendezvous, check_containers)
_CHECKS = {"slurm": check_slurm, "pbs": check_pbs, "cobalt": check_cobalt}


def lint(text: bytes, name: str) -> list[Finding]:
    """All findings about a script, in the order of its lines."""
    script = read_script(text, name)
    job = read_job(script)
    schedulers = _schedulers(job)
    report = Report(name)
    check_file(script, schedulers, report)
    for scheduler in schedulers:
        _check_header(script, scheduler, job, report)
    if job.shell is not None:
        for check in _BODY_CHECKS:
            check(job, report)
    return report.findings()


def schedulers_of(text: bytes) -> list[SchedulerName]:
    """The schedulers whose directives a script has, well or badly written."""
    return _schedulers(read_job(read_script(text, "")))


def header_errors(text: bytes | str, scheduler: SchedulerName, name: str = "") -> list[Finding]:
    """The errors in the header of a script as `scheduler` reads it, and nothing about its body."""
    script = read_script(text.encode() if isinstance(text, str) else text, name)
    report = Report(name)
    check_file(script, [scheduler], report)
    _check_header(script, scheduler, read_job(script), report)
    return [
        finding
        for finding in report.findings()
        if finding.severity == "error" or finding.rule == "torque-option"
    ]


def _schedulers(job: Job) -> list[SchedulerName]:
    return [one for one in SCHEDULERS if has_header(job.script, one, job.layout)]


def _check_header(script: Script, scheduler: SchedulerName, job: Job, report: Report) -> None:
    header = read_header(script, scheduler)
    options = job.options.get(scheduler) or Options()
    given = {option.name for option in options.options}
    check_lines(script, header, job.layout, given, report)
    check_comments(header, report)
    check_words(script, header, options, report)
    _CHECKS[scheduler](header, options, report)
