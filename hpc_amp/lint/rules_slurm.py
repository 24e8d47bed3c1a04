"""Rules about Slurm's options."""

from __future__ import annotations

import itertools
import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_options import same_value_twice
from hpc_amp.schedulers.grammar import Header, Option, Options, number

# sbatch combines the values of this option.
_ADDS_UP = {"mail-type"}
_WORDS = {"ALL", "NONE", "NIL"}  # of --export
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# sbatch 22.05 refuses these options with an empty value. It ignores others, such as `--gpus=`.
_NEVER_EMPTY = {
    *("begin", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline"),
    *("delay-boot", "distribution", "export-file", "gpu-bind", "gpu-freq", "gres", "gres-flags"),
    *("hint", "mail-type", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "nodefile"),
    *("nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node"),
    *("ntasks-per-socket", "open-mode", "partition", "profile", "signal", "sockets-per-node"),
    *("switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp"),
}


def check_slurm(header: Header, options: Options, report: FileFindings) -> None:
    """Check the options for Slurm: repeated and conflicting ones, --export and --time."""
    for one, part in enumerate(_components(options)):
        by_name: dict[str, list[Option]] = {}
        for option in part:
            by_name.setdefault(option.name, []).append(option)
        for name, given in by_name.items():
            _twice(name, given, report)
        memory = [by_name[name][0] for name in _MEMORY if name in by_name]
        if len(memory) > 1:
            report.add(
                "conflicting-options",
                memory[-1].line,
                f"sbatch refuses {memory[0].spelling} and {memory[-1].spelling} together",
                "keep one of them",
            )
        for option in part:
            if option.value == "" and option.name in _NEVER_EMPTY:
                report.add(
                    "missing-value",
                    option.line,
                    f"`{option.spelling}` has an empty value: sbatch refuses the script",
                    "give the value, or remove the option",
                )
        _counts(by_name, report)
        if one == 0:
            for option in by_name.get("export", []):
                check_export(option.value or "", comma_in_quotes(option), option.line, report)
        for option in by_name.get("time", []):
            _time(option, report)


def _counts(by_name: dict[str, list[Option]], report: FileFindings) -> None:
    """Check --ntasks with --ntasks-per-node, which is then only the maximum on each node."""
    given = {
        name: number((by_name[name][-1].value or "").partition("-")[0])
        for name in ("ntasks", "ntasks-per-node", "nodes")
        if name in by_name
    }
    tasks, per_node, nodes = (given.get(one) for one in ("ntasks", "ntasks-per-node", "nodes"))
    if not tasks or not per_node:
        return
    line = by_name["ntasks"][-1].line
    if nodes and tasks > nodes * per_node and "-" not in (by_name["nodes"][-1].value or ""):
        report.add(
            "conflicting-options",
            line,
            f"{tasks} tasks do not fit on {nodes} node(s) with {per_node} each: sbatch refuses the "
            "script",
            "remove --ntasks, or correct it",
        )
    elif tasks < per_node or (nodes is not None and tasks <= nodes and per_node > 1):
        report.add(
            "ntasks-wins",
            line,
            f"with --ntasks={tasks}, --ntasks-per-node={per_node} is only a maximum: the job has "
            f"{tasks} task(s) in total",
            "remove --ntasks",
        )


def _components(options: Options) -> list[list[Option]]:
    """The options of each component of a heterogeneous job. Components may repeat options."""
    starts = [word.line for word in options.alone]
    parts: list[list[Option]] = [[] for _ in range(len(starts) + 1)]
    for option in options.options:
        parts[sum(option.line > start for start in starts)].append(option)
    return parts


def _twice(name: str, given: list[Option], report: FileFindings) -> None:
    if name in _ADDS_UP:
        return
    for option in same_value_twice(given):
        if name == "export":
            report.add(
                "export-twice",
                option.line,
                f"a second --export replaces the first: `{shown(given[0].value or '')}` is lost",
                "put all variables into one --export",
            )
        else:
            first = given[0]
            report.add(
                "option-twice",
                option.line,
                f"`{shown(option.shown)}` replaces `{shown(first.shown)}` of line {first.line}",
                "keep one of them",
            )


def comma_in_quotes(option: Option) -> bool:
    """Whether a single value of a list is quoted (A="x,y"), not the whole list ("A=x,B=y")."""
    word = option.value_word
    if word is None or word.before_comma is None:
        return False
    before = word.before_comma
    return "=" in (before.partition("=")[2] if word is option.word else before)


def check_export(
    value: str, quoted: bool, line: int, report: FileFindings, *, by: str = "sbatch"
) -> None:
    """Check --export=[ALL,]NAME[=VALUE],….

    Commas separate variables, also inside values. Without ALL, no other variable of the environment
    reaches the job. `quoted` says whether a value was in quotes, `by` is the command that reads the
    option.
    """
    entries = value.split(",")
    for before, entry in itertools.pairwise(entries):
        in_quotes = before.count("'") % 2 == 1 or before.count('"') % 2 == 1
        started = "=" in before or in_quotes
        if "=" in entry or not started or entry == "":
            continue
        if entry.upper() in _WORDS:
            continue
        plain_name = re.fullmatch(r"[A-Z_][A-Z0-9_]*", entry) is not None
        if (plain_name and not quoted) or entry.startswith("$"):
            continue
        report.add(
            "export-comma",
            line,
            f"--export separates variables at commas, also inside quotes: the value before "
            f"`,{shown(entry, 30)}` ends there",
            "export the variable in the script instead",
        )
        break
    names = {entry.strip().upper() for entry in entries}
    assigns = any("=" in entry for entry in entries)
    if assigns and not names & _WORDS and not value.startswith("$"):
        report.add(
            "export-drops-environment",
            line,
            f"without ALL, {by} passes no other variables: no PATH, no modules"
            + (", no MASTER_ADDR" if by == "srun" else ""),
            f"write --export=ALL,{shown(value, 40)}",
        )


def _time(option: Option, report: FileFindings) -> None:
    """Check for times such as `24h`, which sbatch does not accept."""
    value = option.value or ""
    if re.fullmatch(r"\d+\s*(?:s|m|h|d|sec|min|mins|hr|hrs|hours?|minutes?|days?)", value, re.I):
        report.add(
            "bad-value",
            option.line,
            f"sbatch refuses the time `{shown(value)}`",
            "write MINUTES, HH:MM:SS or DAYS-HH:MM:SS",
        )
