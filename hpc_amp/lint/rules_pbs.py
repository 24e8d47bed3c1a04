"""Rules about what PBS Pro's options mean together."""

from __future__ import annotations

import re

from hpc_amp.lint.directives import Header
from hpc_amp.lint.findings import Report, shown
from hpc_amp.lint.options import Option, Options, resource_list
from hpc_amp.lint.rules_options import is_placeholder
from hpc_amp.lint.rules_slurm import comma_in_quotes

# Resources of a host: they belong into the chunks of a select.
_HOST_LEVEL = {"ncpus", "mem", "vmem", "ngpus", "mpiprocs", "ompthreads", "naccelerators", "arch"}
_VALUES = {
    "j": (r"oe|eo|n", "oe, eo or n"),
    "r": (r"[yn]", "y or n"),
    "k": (r"[doe]{1,3}|n", "letters of o, e and d, or n"),
    "m": (r"[abejnp]+", "letters of a, b, e, j, or n"),
    "J": (r"\d+-\d+(?::\d+)?(?:%\d+)?", "FIRST-LAST[:STEP][%MAX]"),
}


def check_pbs(header: Header, options: Options, report: Report) -> None:
    """Resources given twice, select with the old syntax, -v, -N and other values."""
    resources = [
        (name, value, option)
        for option in options.all("l")
        for name, value in resource_list(option.value or "")
    ]
    _resources(resources, report)
    _torque(options, {name for name, _, _ in resources}, report)
    for option in options.all("v"):
        _variables(option, report)
    given = options.all("v")
    for option in given[1:]:
        if option.value != given[0].value:
            report.add(
                "env-not-merged",
                option.line,
                f"a second -v replaces the first: `{shown(given[0].value or '')}` is lost",
                "put all variables into one -v, or export them in the script",
            )
    for option in options.all("N"):
        _job_name(option, report)
    for name, (pattern, allowed) in _VALUES.items():
        for option in options.all(name):
            value = option.value or ""
            if not re.fullmatch(pattern, value) and not is_placeholder(value):
                report.add(
                    "bad-value",
                    option.line,
                    f"qsub refuses `{shown(option.shown)}`",
                    f"give {allowed}",
                )


def _resources(resources: list[tuple[str, str | None, Option]], report: Report) -> None:
    first: dict[str, tuple[str | None, int]] = {}
    for name, value, option in resources:
        if name not in first:
            first[name] = (value, option.line)
        elif first[name][0] != value:
            kept, line = first[name]
            report.add(
                "first-resource-wins",
                option.line,
                f"PBS keeps the first -l {name}: {shown(kept or '')} of line {line} counts, "
                f"{shown(value or '')} does not",
                "keep one of them"
                if name != "select"
                else "join chunks with `+` in one select, or keep one of them",
            )
    if "select" not in first:
        return
    for name, _, option in resources:
        if name in _HOST_LEVEL or name == "nodes":
            report.add(
                "conflicting-options",
                option.line,
                f"qsub refuses -l {name} together with -l select",
                "put it into the chunk: select=N:…"
                if name != "nodes"
                else "keep select: select=N:ncpus=…:mpiprocs=…",
            )


def _torque(options: Options, resources: set[str], report: Report) -> None:
    if "elapstim_req" in resources or options.all("T"):
        return  # NEC's NQSV, which has `#PBS` lines and options of its own
    is_pro = bool(resources & {"select", "place", "filesystems"})
    for option in options.options:
        if not option.torque:
            continue
        if option.spelling == "-t":
            fix = "PBS Pro's job arrays are -J FIRST-LAST, and $PBS_ARRAY_INDEX"
        elif option.spelling in ("-d", "-w"):
            fix = "change the directory in the script: cd $PBS_O_WORKDIR"
        else:
            fix = "leave it out"
        also = ", and this script is written for PBS Pro" if is_pro else ""
        report.add(
            "torque-option",
            option.line,
            f"only Torque's qsub knows {option.spelling}; PBS Pro refuses the script{also}",
            fix,
        )


def _variables(option: Option, report: Report) -> None:
    """-v NAME[=VALUE],…: PBS parses the list once more, after the quotes are off."""
    value = option.value or ""
    if "\\" in value.replace("\\,", ""):
        report.add(
            "env-value",
            option.line,
            "-v doubles a backslash in a value",
            "export the variable in the script instead",
        )
        return
    bare = re.sub(r"\\,|'[^']*'|\"[^\"]*\"", "", value)
    if "'" in bare or '"' in bare:
        report.add(
            "env-value",
            option.line,
            "-v cannot carry a quote in a value: qsub refuses the script",
            "export the variable in the script instead",
        )
        return
    for entry in bare.split(",")[1:]:
        name = entry.partition("=")[0]
        in_value = "=" not in entry and comma_in_quotes(option) and bare == value
        is_name = re.fullmatch(r"[A-Za-z_]\w*", name.rstrip()) is not None and not in_value
        if not is_name and not is_placeholder(name):
            report.add(
                "env-value",
                option.line,
                f"-v parts variables at commas: `{shown(entry, 30)}` is taken for another one",
                "export the variable in the script instead, or quote twice: \"A='x,y'\"",
            )
            return


def _job_name(option: Option, report: Report) -> None:
    value = option.value or ""
    if option.attached and value.startswith("="):
        return  # short-option-equals
    bad = re.sub(r"[A-Za-z0-9._+-]", "", value)
    if is_placeholder(value):
        return
    if bad or not value:
        what = f"`{shown(bad[:1])}` is not allowed" if bad else "it is empty"
        report.add(
            "bad-value",
            option.line,
            f"qsub refuses the job name `{shown(value)}`: {what}",
            "use letters, digits and . _ + -",
        )
    elif len(value) > 230:
        report.add(
            "bad-value", option.line, "qsub refuses a job name of over 230 letters", "shorten it"
        )
