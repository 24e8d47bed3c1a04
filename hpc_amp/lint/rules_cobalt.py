"""Rules about what Cobalt's options mean together."""

from __future__ import annotations

import re

from hpc_amp.lint.directives import Header
from hpc_amp.lint.findings import Report, shown
from hpc_amp.lint.options import Option, Options
from hpc_amp.lint.rules_options import is_placeholder

_TIME_FORMS = "give minutes, HH:MM:SS or DD:HH:MM:SS"


def check_cobalt(header: Header, options: Options, report: Report) -> None:
    """--attrs and --env given twice, their values, times, modes and dependencies."""
    attrs = options.all("attrs")
    for option in attrs[1:]:
        report.add(
            "attrs-twice",
            option.line,
            "Cobalt refuses a second --attrs, also one on the command line",
            f"join them: --attrs {shown(attrs[0].value or 'A=1')}:{shown(option.value or '')}",
        )
    _env(options.all("env"), report)
    for option in options.all("time"):
        _time(option, report)
    for option in options.all("nodecount"):
        value = option.value or ""
        if not re.fullmatch(r"[1-9]\d*", value) and not is_placeholder(value):
            _bad(option, "a number of nodes", report)
    for option in options.all("mode"):
        if option.value != "script":
            report.add(
                "conflicting-options",
                option.line,
                "a script with a header runs in mode script: Cobalt refuses "
                f"`--mode {shown(option.value or '')}` (Mode already set)",
                "take it out",
            )
    for option in options.all("dependencies"):
        if "," in (option.value or ""):
            report.add(
                "bad-value",
                option.line,
                "`:` parts the jobs of --dependencies; with a comma the job is held for ever",
                f"write {shown((option.value or '').replace(',', ':'))}",
            )


def _bad(option: Option, what: str, report: Report, fix: str = "give a plain number") -> None:
    report.add(
        "bad-value", option.line, f"Cobalt refuses `{shown(option.shown)}`: it is not {what}", fix
    )


def _env(given: list[Option], report: Report) -> None:
    with_equals = [option for option in given if option.word is option.value_word]
    if with_equals and len(given) > 1:
        lost = given[0] if with_equals[-1] is not given[0] else given[-1]
        report.add(
            "env-not-merged",
            with_equals[-1].line,
            f"--env=… does not join other --env: `{shown(lost.value or '')}` is lost",
            "write `--env A=1:B=2` once, or each as `--env A=1` with a blank",
        )
    for option in given:
        value = re.sub(r"\$\{?(?:COBALT_JOBID|jobid)\b\}?", "", option.value or "")
        if "=" not in value:
            report.add(
                "env-value",
                option.line,
                f"Cobalt refuses `{shown(option.shown)}`: --env needs NAME=VALUE",
                "export the variable in the script instead",
            )
        elif found := re.search(r"[;&|<>()*?!]", value):
            report.add(
                "env-value",
                option.line,
                f"the value goes through a remote shell, which acts on `{found[0]}`",
                "export the variable in the script instead",
            )


def _time(option: Option, report: Report) -> None:
    value = option.value or ""
    if is_placeholder(value) or re.search(r"[HMShms]{2}", value):
        return
    parts = value.split(":")
    if not all(re.fullmatch(r"\d+", part) for part in parts) or len(parts) > 4:
        _bad(option, "a time", report, _TIME_FORMS)
        return
    numbers = [int(part) for part in parts]
    if len(numbers) > 2 and numbers[-1] > 59:
        _bad(option, "a time (seconds go to 59)", report, _TIME_FORMS)
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
            f"cluster systems refuse less than 5 minutes: `{shown(value)}` is {minutes} min",
            "ask for 5 minutes or more",
        )
    elif len(numbers) == 2 and numbers[0] >= 5:
        report.add(
            "hours-not-minutes",
            option.line,
            f"`{shown(value)}` is {numbers[0]} hours {numbers[1]} minutes (HH:MM), not minutes",
            f"write {value}:00 if hours are meant, {numbers[0]} if minutes are",
        )
