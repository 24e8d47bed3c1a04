"""Rules about what Grid Engine's options mean. Verdicts are those of Son of Grid Engine 8.1.9."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_options import is_placeholder
from hpc_amp.schedulers.grammar import Directive, Header, Option, Options

# Resources of other schedulers' `-l`, which Grid Engine does not have.
_OF_OTHERS = {"walltime": "h_rt", "nodes": "-pe", "select": "-pe", "ncpus": "-pe", "mem": "h_vmem"}
_FORMS = {
    "t": (r"[1-9]\d*(-[1-9]\d*(:[1-9]\d*)?)?", "tasks count from 1: write 1-N, or 1-N:STEP"),
    "tc": (r"\d+", "give a plain number"),
    "p": (r"-?\d{1,4}", "give a number from -1023 to 1024"),
    "j": (r"y|yes|n|no", "write y or n"),
    "r": (r"y|yes|n|no", "write y or n"),
    "R": (r"y|yes|n|no", "write y or n"),
    "N": (
        r"(?!(?i:none|all|template)$)[A-Za-z._+=-][A-Za-z0-9._+=,%-]*",
        "use letters, digits and ._- without a digit in front",
    ),
    "pe": (
        r"\S+ ([1-9]\d*(-\d*)?|-[1-9]\d*)(,.*)?",
        "give the environment's name and a number of slots: -pe mpi 16",
    ),
}


def check_gridengine(header: Header, options: Options, report: FileFindings) -> None:
    """Words behind a quote, values that qsub refuses, and options with which it submits no job."""
    swallowed = {one.line for one in header.directives if _behind_a_quote(one, report)}
    for option in options.options:
        if option.line in swallowed or is_placeholder(option.value or ""):
            continue
        form, fix = _FORMS.get(option.name, (r"(?s:.*)", ""))
        if not re.fullmatch(form, option.value or ""):
            _bad(option, option.shown, fix, report)
        for name, text in header.grammar.entries(option) or ():
            if option.name == "l":
                _resource(option, name, text, report)
        if option.name in ("verify", "help"):
            report.add(
                "submits-nothing",
                option.line,
                f"with `{option.spelling}` qsub prints a text: there is no job",
                "take it out",
            )


def _behind_a_quote(directive: Directive, report: FileFindings) -> bool:
    """Whether words stand behind a quote."""
    text = directive.text.partition("#")[0]
    if not re.search(r"([\"'])[^\"']*\1\S*\s+\S", text):
        return False
    word = next(word for word in directive.split.words if word.quoted)
    report.add(
        "quote-takes-the-rest",
        directive.line,
        "behind a quote, blanks do not part words any more: qsub takes "
        f"`{shown(word.text)}` for one word",
        "put an option with quotes behind all others, or on a line of its own",
    )
    return True


def _resource(option: Option, name: str, text: str, report: FileFindings) -> None:
    value = text.partition("=")[2]
    if name in _OF_OTHERS:
        fix = f"Grid Engine has {_OF_OTHERS[name]} for it"
        _bad(option, f"-l {text}", fix, report)
    elif name in ("h_rt", "s_rt") and not re.fullmatch(r"\d+|\d+:\d+:\d+|(?i:infinity)", value):
        _bad(option, f"-l {text}", "give seconds or HH:MM:SS", report)


def _bad(option: Option, text: str, fix: str, report: FileFindings) -> None:
    what = "Grid Engine refuses `{}`, or understands something else"
    report.add("bad-value", option.line, what.format(shown(text)), fix)
