"""Rules about Grid Engine's options, as Son of Grid Engine 8.1.9 reads them."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_options import is_placeholder
from hpc_amp.schedulers.grammar import Directive, Header, Option, Options

# Resources of `-l` of other schedulers, and what Grid Engine has instead.
_OF_OTHERS = {"walltime": "h_rt", "nodes": "-pe", "select": "-pe", "ncpus": "-pe", "mem": "h_vmem"}
_FORMS = {
    "t": (r"[1-9]\d*(-[1-9]\d*(:[1-9]\d*)?)?", "write 1-N or 1-N:STEP; task numbers start at 1"),
    "tc": (r"\d+", "give a plain number"),
    "p": (r"-?\d{1,4}", "give a number from -1023 to 1024"),
    "j": (r"y|yes|n|no", "write y or n"),
    "r": (r"y|yes|n|no", "write y or n"),
    "R": (r"y|yes|n|no", "write y or n"),
    "N": (
        r"(?!(?i:none|all|template)$)[A-Za-z._+=-][A-Za-z0-9._+=,%-]*",
        "use letters, digits and ._- and do not start with a digit",
    ),
    "pe": (
        r"\S+ ([1-9]\d*(-\d*)?|-[1-9]\d*)(,.*)?",
        "give the name of the parallel environment and a number of slots: -pe mpi 16",
    ),
}


def check_gridengine(header: Header, options: Options, report: FileFindings) -> None:
    """Check for words after a quote, values that qsub refuses, and options that submit no job."""
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
                f"with `{option.spelling}`, qsub only prints a text and submits no job",
                "remove the option",
            )


def _behind_a_quote(directive: Directive, report: FileFindings) -> bool:
    """Whether words follow a quote on the same line; reports it."""
    text = directive.text.partition("#")[0]
    if not re.search(r"([\"'])[^\"']*\1\S*\s+\S", text):
        return False
    word = next(word for word in directive.split.words if word.quoted)
    report.add(
        "quote-takes-the-rest",
        directive.line,
        "after a quote, qsub no longer splits words at blanks: it reads "
        f"`{shown(word.text)}` as one word",
        "write an option with quotes last, or on a separate line",
    )
    return True


def _resource(option: Option, name: str, text: str, report: FileFindings) -> None:
    value = text.partition("=")[2]
    if name in _OF_OTHERS:
        fix = f"use {_OF_OTHERS[name]} of Grid Engine instead"
        _bad(option, f"-l {text}", fix, report)
    elif name in ("h_rt", "s_rt") and not re.fullmatch(r"\d+|\d+:\d+:\d+|(?i:infinity)", value):
        _bad(option, f"-l {text}", "give seconds or HH:MM:SS", report)


def _bad(option: Option, text: str, fix: str, report: FileFindings) -> None:
    what = "Grid Engine refuses `{}`, or reads it differently"
    report.add("bad-value", option.line, what.format(shown(text)), fix)
