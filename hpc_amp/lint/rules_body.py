"""Rules about the body of a batch script: log files, working directory, arrays and --export."""

from __future__ import annotations

import posixpath
import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.job import LintedJob
from hpc_amp.lint.rules_slurm import check_export
from hpc_amp.schedulers.grammar import Option
from hpc_amp.schedulers.pbs.grammar import resources as pbs_resources


def check_body(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    if not job.options:
        return
    _log_directory(job, report)
    _working_directory(job, report)
    _array(job, report)
    for launch in job.launches:
        value = launch.options.get("export")
        if launch.kind == "srun" and value:
            check_export(value, False, launch.line, report, by="srun")


def _log_directory(job: LintedJob, report: FileFindings) -> None:
    """Slurm and Cobalt open the log before the script runs."""
    logs: list[tuple[str, Option]] = []
    if "slurm" in job.options:
        for name in ("output", "error"):
            logs += [("Slurm", one) for one in job.options["slurm"].all(name)[-1:]]
    if "cobalt" in job.options:
        for name in ("output", "error", "outputprefix", "debuglog"):
            logs += [("Cobalt", one) for one in job.options["cobalt"].all(name)[-1:]]
    made: dict[str, int] = {}
    resubmits = any(
        command.program and command.program[0].text in ("sbatch", "qsub")
        for command in job.commands
    )
    if resubmits:  # the script creates the folder first, and then submits itself
        return
    for command in job.commands:
        program = [job.expand(word.text) for word in command.program]
        if program[:1] == ["mkdir"] and command.function is None:
            for word in program[1:]:
                made.setdefault(posixpath.normpath(word), command.line)
    for scheduler, option in logs:
        folder = posixpath.dirname(option.value or "")
        if not folder or "%" in folder or "$" in folder:
            continue
        line = made.get(posixpath.normpath(folder))
        if line is not None:
            report.add(
                "log-directory-too-late",
                option.line,
                f"{scheduler} opens `{shown(option.value or '')}` before line {line} creates the "
                "folder: if it does not exist, the job fails without a log",
                f"create it before you submit: mkdir -p {shown(folder)}",
            )


def _working_directory(job: LintedJob, report: FileFindings) -> None:
    """A PBS job starts in $HOME, so relative paths refer to $HOME."""
    if set(job.options) != {"pbs"} or not job.commands:
        return
    options = job.options["pbs"]
    if any(options.all(name) for name in ("d", "w", "D")) or options.all("I"):
        return
    if "wd" in pbs_resources(options):  # NCI's
        return
    if "PBS_O_WORKDIR" in job.body or "PBS_JOBDIR" in job.body:
        return
    for command in job.commands:
        program = [word.text for word in command.program]
        if program[:1] and program[0] in ("cd", "pushd", "source", ".", "eval"):
            return
        if re.search(r"--?(?:wdir|wd|workdir|chdir|pwd|cwd)\b", " ".join(program)):
            return
    for command in job.commands:
        for word in command.program:
            text = word.text
            relative_program = re.fullmatch(r"\./[\w./-]+", text)
            relative_script = re.fullmatch(r"(?![/~$])[\w][\w./-]*\.py", text)
            if (relative_program or relative_script) and command.depth == 0:
                report.add(
                    "no-cd",
                    command.line,
                    f"a PBS job starts in $HOME, so `{shown(text)}` is searched there",
                    'add at the beginning: cd "$PBS_O_WORKDIR"',
                )
                return


# Commands that take a job id, and what they do to every task of an array.
_BY_NUMBER = {
    "requeue": "requeues",
    "requeuehold": "requeues",
    "hold": "holds",
    "suspend": "suspends",
    "scancel": "cancels",
}


def _array(job: LintedJob, report: FileFindings) -> None:
    """In one task of an array, SLURM_JOB_ID is the id of the whole array."""
    array = job.options["slurm"].last("array") if "slurm" in job.options else None
    if not array or re.fullmatch(r"\d+(?:%\d+)?", array) or "SLURM_ARRAY_JOB_ID" in job.body:
        return
    for command in job.commands:
        words = [job.expand(word.text) for word in command.program]
        verb = words[1] if words[:1] == ["scontrol"] and len(words) > 1 else "".join(words[:1])
        given = any(re.search(r"\$\{?SLURM_JOB_?ID\b", word) for word in words[1:])
        if verb in _BY_NUMBER and given:
            report.add(
                "array-by-job-id",
                command.line,
                f"in one task of an array, SLURM_JOB_ID is the id of the whole array: this command "
                f"{_BY_NUMBER[verb]} every task",
                'use the id of the task: "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
            )
