"""Apply the rules about the header of a script, which is what its scheduler reads."""

from __future__ import annotations

from hpc_amp.finding import FileFinding
from hpc_amp.lint.findings import FileFindings
from hpc_amp.lint.job import LintedJob, read_job
from hpc_amp.lint.rules_lines import check_comments, check_file, check_lines
from hpc_amp.lint.rules_options import check_words
from hpc_amp.lint.rules_own import check_own
from hpc_amp.lint.script import LintedScript, read_script
from hpc_amp.schedulers.grammar import Grammar, Options


def header_errors(text: bytes | str, grammar: Grammar, name: str = "") -> list[FileFinding]:
    """Return the errors in the header of a script, read with the scheduler's `grammar`.

    `name` is the file name for messages. The body of the script is not checked.
    """
    script = read_script(text.encode() if isinstance(text, str) else text, name)
    report = FileFindings(name)
    check_file(script, [grammar], report)
    check_header(script, grammar, read_job(script, [grammar]), report)
    return [
        finding
        for finding in report.findings()
        if finding.severity == "error" or finding.id == "torque-option"
    ]


def check_header(
    script: LintedScript, grammar: Grammar, job: LintedJob, report: FileFindings
) -> None:
    """Report all findings in the header, read with the scheduler's `grammar`."""
    header = grammar.read(script.lines)
    options = job.options.get(grammar.name) or Options()
    given = {option.name for option in options.options}
    check_lines(script, header, job.layout, given, report)
    check_comments(header, report)
    check_words(script, header, options, report)
    check_own(header, options, report)
