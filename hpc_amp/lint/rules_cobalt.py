"""Rules about Cobalt's options."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_options import is_placeholder, is_typographic
from hpc_amp.schedulers.grammar import Directive, Header, Option, Options

_TIME_FORMS = "give minutes, HH:MM:SS or DD:HH:MM:SS"


def check_cobalt(header: Header, options: Options, report: FileFindings) -> None:
    """Check the options for Cobalt.

    The rules find --attrs and --env given twice, values that qsub refuses or that cause a failure
    later, and options with which qsub submits no job.
    """
    for directive in header.directives:
        _non_ascii(directive, report)
    for option in options.options:
        _flags(header, option, report)
    attrs = options.all("attrs")
    for option in attrs[1:]:
        report.add(
            "attrs-twice",
            option.line,
            "Cobalt refuses a second --attrs, also on the command line",
            f"join them: --attrs {shown(attrs[0].value or 'A=1')}:{shown(option.value or '')}",
        )
    _env(options.all("env"), report)
    for option in options.all("time"):
        _time(option, report)
    for option in attrs:
        for item in (option.value or "").split(":"):
            if item.count("=") > 1:
                _bad(option, "a list of NAME=VALUE", report, "give each name one value")
    for name, what in (("nodecount", "a number of nodes"), ("proccount", "a positive number")):
        for option in options.all(name):
            _count(option, what, report)
    for option in options.all("umask"):
        if not re.fullmatch(r"(0o)?[0-7]+", option.value or "") and not _is_open(option):
            _bad(option, "an octal number", report, "write an octal number, such as 022")
    for option in options.all("geometry"):
        if not re.fullmatch(r"\d+(x\d+){3}x[12]", option.value or "") and not _is_open(option):
            _bad(option, "AxBxCxDxE", report, "remove it: only Blue Gene systems have a geometry")
    for option in options.all("cwd"):
        value = option.value or ""
        if value and "/" not in value and not value.startswith("~") and not _is_open(option):
            _bad(option, "a folder that it can find", report, "give the absolute path")
    for option in options.all("mode"):
        if option.value != "script":
            report.add(
                "conflicting-options",
                option.line,
                "a script with a header runs in mode script: Cobalt refuses "
                f"`--mode {shown(option.value or '')}` (Mode already set)",
                "remove the option",
            )
    for option in options.all("dependencies"):
        _dependencies(option, report)


def _non_ascii(directive: Directive, report: FileFindings) -> None:
    text = directive.text
    if not text.isascii() and not is_typographic(text):
        found = next(letter for letter in text if not letter.isascii())
        report.add(
            "non-ascii",
            directive.line,
            f"`{shown(found)}` is not ASCII: qstat fails for all users while the job is queued",
            "use only ASCII letters",
        )


def _flags(header: Header, option: Option, report: FileFindings) -> None:
    """Check options that take no value, and options that make no sense in a batch script."""
    if option.name in header.grammar.options.flags.values() and option.value is not None:
        _bad(option, "an option that takes a value", report, f"write `{option.spelling}`")
    elif option.name in ("help", "version"):
        report.add(
            "submits-nothing",
            option.line,
            f"with `{option.spelling}`, qsub only prints a text, exits with 0 and submits no job",
            "remove the option",
        )
    elif option.name == "interactive":
        report.add(
            "conflicting-options",
            option.line,
            f"Cobalt refuses `{option.spelling}` in a script (Mode already set)",
            "remove the option, or call qsub -I without a script",
        )


def _is_open(option: Option) -> bool:
    return is_placeholder(option.value or "")


def _count(option: Option, what: str, report: FileFindings) -> None:
    """Check a number. qsub reads a number with a leading 0 as octal, and with 0x as hexadecimal."""
    value = option.value or ""
    octal = re.fullmatch(r"0+([0-7]+)", value)
    if octal and int(octal[1], 8) > 7:
        number = int(octal[1], 8)
        report.add(
            "bad-value",
            option.line,
            f"a leading 0 makes a number octal: `{shown(option.shown)}` means {number}",
            f"write {value.lstrip('0')} or {number}",
        )
    elif not re.fullmatch(r"\+?[1-9]\d*|0+[1-7]|0[xX][0-9a-fA-F]+", value) and not _is_open(option):
        _bad(option, what, report)


def _dependencies(option: Option, report: FileFindings) -> None:
    value = option.value or ""
    if _is_open(option):
        return
    if "," in value:
        report.add(
            "bad-value",
            option.line,
            "--dependencies separates jobs with `:`; with a comma, the job is held forever",
            f"write {shown(value.replace(',', ':'))}",
        )
    elif not re.fullmatch(r"\d+(:\d+)*", value):
        report.add(
            "bad-value",
            option.line,
            f"`{shown(option.shown)}` names no job: Cobalt only warns, and holds the job forever",
            "give job ids, separated by `:`",
        )


def _bad(option: Option, what: str, report: FileFindings, fix: str = "give a plain number") -> None:
    report.add(
        "bad-value", option.line, f"Cobalt refuses `{shown(option.shown)}`: it is not {what}", fix
    )


def _env(given: list[Option], report: FileFindings) -> None:
    with_equals = [option for option in given if option.word is option.value_word]
    if with_equals and len(given) > 1:
        lost = given[0] if with_equals[-1] is not given[0] else given[-1]
        report.add(
            "env-not-merged",
            with_equals[-1].line,
            f"--env=… is not merged with other --env options: `{shown(lost.value or '')}` is lost",
            "write `--env A=1:B=2` once, or each `--env A=1` with a blank instead of `=`",
        )
    for option in given:
        value = re.sub(r"\$\{?(?:COBALT_JOBID|jobid)\b\}?", "", option.value or "")
        items = re.split(r":(?=\w+=)", value.replace("\\=", ""))
        if not all("=" in item for item in items):
            report.add(
                "env-value",
                option.line,
                f"Cobalt refuses `{shown(option.shown)}`: --env needs NAME=VALUE",
                "export the variable in the script instead",
            )
        elif found := re.search(r"[;&|<>()*?!]|\{[^{}]*(?:,|\.\.)[^{}]*\}|(?<=[=:])~", value):
            report.add(
                "env-value",
                option.line,
                f"a remote shell evaluates the value: `{shown(found[0])}` has a meaning to it",
                "export the variable in the script instead",
            )


def _time(option: Option, report: FileFindings) -> None:
    value = option.value or ""
    if is_placeholder(value) or re.search(r"[HMShms]{2}", value):
        return
    parts = value.split(":")
    if not all(re.fullmatch(r"\+?\d+", part) for part in parts) or len(parts) > 4:
        _bad(option, "a time", report, _TIME_FORMS)
        return
    numbers = [int(part) for part in parts]
    if len(numbers) > 2 and numbers[-1] > 59:
        _bad(option, "a time (seconds are at most 59)", report, _TIME_FORMS)
        return
    if len(numbers) == 1:
        minutes = numbers[0]
    elif len(numbers) == 2:
        minutes = numbers[0] * 60 + numbers[1]
    else:
        minutes = sum(n * f for n, f in zip(numbers[-2::-1], (1, 60, 1440), strict=False))
    if 0 < minutes < 5 or (minutes == 0 and len(numbers) > 2 and numbers[-1] > 0):
        report.add(
            "bad-value",
            option.line,
            f"Cobalt on clusters refuses less than 5 minutes: `{shown(value)}` is {minutes} min",
            "request 5 minutes or more",
        )
    elif len(numbers) == 2 and numbers[0] >= 5:
        report.add(
            "hours-not-minutes",
            option.line,
            f"`{shown(value)}` is {numbers[0]} hours {numbers[1]} minutes (HH:MM), not minutes",
            f"write {value}:00 for hours, or {numbers[0]} for minutes",
        )
