"""Rules about --signal of Slurm: which processes get the signal, and what they do."""

from __future__ import annotations

import posixpath
import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.job import LintedJob
from hpc_amp.lint.starts import local_programs, starts_elsewhere
from hpc_amp.schedulers.grammar import Option

_SIGNAL = re.compile(r"(?P<flags>(?:[BR]{1,2}:)?)(?:SIG)?(?P<name>\w+?)(?:@\d+)?")
_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}
# Signals that end a script without a trap, although they are sent in order to be caught.
_MEANT_TO_BE_CAUGHT = {"USR1", "USR2", "HUP", "ALRM"}


def check_signals(job: LintedJob, report: FileFindings) -> None:
    """Check --signal, which reaches only the steps of srun, or with `B:` only the batch shell."""
    if "slurm" not in job.options:
        return
    given = job.options["slurm"].all("signal")
    if not given:
        return
    option = given[-1]
    match = _SIGNAL.fullmatch((option.value or "").upper())
    if match is None:
        return
    name = _NUMBERS.get(match["name"], match["name"])
    trapped = next((line for line, names in _traps(job) if name in names), None)
    if "B" in match["flags"]:
        if trapped is not None:
            _trap_waits(job, trapped, report)
        elif name in _MEANT_TO_BE_CAUGHT:
            _kills_script(job, name, option, report)
    elif trapped is not None:
        report.add(
            "signal-misses-script",
            option.line,
            f"without `B:`, Slurm only signals the steps of srun: the trap in line {trapped} never "
            "runs",
            f"write --signal=B:{shown(option.value or '')}",
        )
    else:
        _reaches_nobody(job, name, option, report)


def _trap_waits(job: LintedJob, trapped: int, report: FileFindings) -> None:
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
                "the shell runs the trap only after srun has ended, which is too late",
                "start srun in the background with `&`, followed by `wait`",
            )


def _kills_script(job: LintedJob, name: str, option: Option, report: FileFindings) -> None:
    """Report a signal that ends the script, because the script has no trap for it."""
    if not job.commands or _may_catch(job, name):
        return
    report.add(
        "signal-kills-script",
        option.line,
        f"the signal goes to the batch script, which has no trap for {name}: the script and the "
        "job end at once",
        f"add a trap that forwards it (trap 'kill -{name} $pid' {name}), or start the program "
        "with exec; to signal the steps of srun, remove `B:`",
    )


def _may_catch(job: LintedJob, name: str) -> bool:
    """Whether the script may handle the signal: with a trap, exec, or a file that it sources."""
    for command in job.commands:
        words = [job.expand(word.text) for word in command.program]
        first = words[0] if words else ""
        if first == "trap" and (name in _names(words[1:]) or "$" in "".join(words[1:])):
            return True
        if first == "exec" and len(words) > 1:
            return True
        if first in ("source", ".") and len(words) > 1 and not _sets_up_only(words[1]):
            return True
    return False


def _sets_up_only(path: str) -> bool:
    """Whether a sourced file only sets up an environment, so that it has no traps."""
    name = posixpath.basename(path)
    return (
        name
        in ("activate", "conda.sh", "mamba.sh", "lmod", "bash", "sh", "setvars.sh", "modules.sh")
        or re.search(r"profile|bashrc|init|module|\benv\b|venv", path) is not None
    )


def _reaches_nobody(job: LintedJob, name: str, option: Option, report: FileFindings) -> None:
    programs = local_programs(job)
    if not programs or starts_elsewhere(job):
        return
    program = programs[-1]
    report.add(
        "signal-reaches-nobody",
        option.line,
        f"without `B:`, Slurm only signals the steps of srun, and there are none: "
        f"`{shown(program.name, 40)}` in line {program.line} never gets {name}",
        "start it with srun, or write --signal=B:… and start it with exec",
    )


def _names(words: list[str]) -> set[str]:
    names = {word.upper().removeprefix("SIG") for word in words}
    return {_NUMBERS.get(name, name) for name in names}


def _traps(job: LintedJob) -> list[tuple[int, set[str]]]:
    found = []
    for command in job.commands:
        words = [job.expand(word.text) for word in command.program]
        if words[:1] == ["trap"] and len(words) > 2 and words[1] not in ("", "-"):
            found.append((command.line, _names(words[2:])))
    return found
