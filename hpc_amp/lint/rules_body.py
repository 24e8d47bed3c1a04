"""Rules about the body of a batch script: log files, working directory, signals, steps of srun."""

from __future__ import annotations

import posixpath
import re

from hpc_amp.lint.findings import Report, shown
from hpc_amp.lint.job import Job, pbs_resources
from hpc_amp.lint.options import Option
from hpc_amp.lint.rules_slurm import check_export


def check_body(job: Job, report: Report) -> None:
    """All rules of this module."""
    if not job.options:
        return
    _log_directory(job, report)
    _working_directory(job, report)
    _signals(job, report)
    for launch in job.launches:
        value = launch.options.get("export")
        if launch.kind == "srun" and value:
            check_export(value, False, launch.line, report, by="srun")


def _log_directory(job: Job, report: Report) -> None:
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
    if resubmits:  # it makes the folder first and submits itself then
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
                f"{scheduler} opens `{shown(option.value or '')}` before line {line} makes the "
                "folder: without it the job fails, and leaves no log",
                f"make it before you submit: mkdir -p {shown(folder)}",
            )


def _working_directory(job: Job, report: Report) -> None:
    """A PBS job starts in $HOME."""
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
                    f"a PBS job starts in $HOME: `{shown(text)}` is looked for there",
                    'begin with: cd "$PBS_O_WORKDIR"',
                )
                return


_SIGNAL = re.compile(r"(?P<flags>(?:[BR]{1,2}:)?)(?:SIG)?(?P<name>\w+?)(?:@\d+)?")
_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}


def _signals(job: Job, report: Report) -> None:
    """--signal reaches the steps only, or with B: the batch shell only."""
    if "slurm" not in job.options:
        return
    given = job.options["slurm"].all("signal")
    if not given:
        return
    match = _SIGNAL.fullmatch((given[-1].value or "").upper())
    if match is None:
        return
    name = _NUMBERS.get(match["name"], match["name"])
    trapped = next((line for line, names in _traps(job) if name in names), None)
    if trapped is None:
        return
    if "B" not in match["flags"]:
        report.add(
            "signal-misses-script",
            given[-1].line,
            f"without `B:` Slurm signals the steps of srun only: the trap in line {trapped} never "
            "runs",
            f"write --signal=B:{shown(given[-1].value or '')}",
        )
        return
    in_front = [
        launch
        for launch in job.launches
        if launch.kind == "srun" and not launch.command.background and not launch.command.depth
    ]
    if in_front and not any(launch.command.background for launch in job.launches):
        last = in_front[-1]
        if last.line > trapped and last.command.function is None:
            report.add(
                "trap-waits",
                last.line,
                "the shell runs the trap only after srun has ended: too late to save anything",
                "start srun with `&` at the end, and then: wait",
            )


def _traps(job: Job) -> list[tuple[int, set[str]]]:
    found = []
    for command in job.commands:
        words = [word.text for word in command.program]
        if words[:1] == ["trap"] and len(words) > 2 and words[1] not in ("", "-"):
            names = {job.expand(word).upper().removeprefix("SIG") for word in words[2:]}
            found.append((command.line, {_NUMBERS.get(name, name) for name in names}))
    return found
