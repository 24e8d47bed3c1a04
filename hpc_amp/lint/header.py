"""The rules about the header of a script: what its scheduler makes of the directives."""

from __future__ import annotations

from hpc_amp.lint.directives import SchedulerName, read_header
from hpc_amp.lint.findings import Finding, Report
from hpc_amp.lint.job import Job, read_job
from hpc_amp.lint.options import Options
from hpc_amp.lint.rules_cobalt import check_cobalt
from hpc_amp.lint.rules_lines import check_comments, check_file, check_lines
from hpc_amp.lint.rules_options import check_words
from hpc_amp.lint.rules_pbs import check_pbs
from hpc_amp.lint.rules_slurm import check_slurm
from hpc_amp.lint.script import Script, read_script

_CHECKS = {"slurm": check_slurm, "pbs": check_pbs, "cobalt": check_cobalt}


def header_errors(text: bytes | str, scheduler: SchedulerName, name: str = "") -> list[Finding]:
    """The errors in the header of a script as `scheduler` reads it, and nothing about its body."""
    script = read_script(text.encode() if isinstance(text, str) else text, name)
    report = Report(name)
    check_file(script, [scheduler], report)
    check_header(script, scheduler, read_job(script), report)
    return [
        finding
        for finding in report.findings()
        if finding.severity == "error" or finding.rule == "torque-option"
    ]


def check_header(script: Script, scheduler: SchedulerName, job: Job, report: Report) -> None:
    """Report all findings in the header that `scheduler` reads."""
    header = read_header(script, scheduler)
    options = job.options.get(scheduler) or Options()
    given = {option.name for option in options.options}
    check_lines(script, header, job.layout, given, report)
    check_comments(header, report)
    check_words(script, header, options, report)
    _CHECKS[scheduler](header, options, report)
