"""Rules about the words of directives, and about options and their values."""

from __future__ import annotations

import itertools
import re

from hpc_amp.lint.directives import (
    BLANKS,
    MARKERS,
    NAMES,
    Directive,
    Header,
    ends_with_backslash,
)
from hpc_amp.lint.findings import Report, shown
from hpc_amp.lint.options import GRAMMARS, Option, Options, likely_meant
from hpc_amp.lint.script import Script

_TYPOGRAPHIC = {
    "\u00a0": "a no-break space",
    "\u200b": "a zero-width space",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "a typographic dash"),
    **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019\u201a", "a typographic quote"),
}
_VARIABLE = re.compile(r"\$(?:\{\w+|[A-Za-z_]\w*|\()|`")
# What a template, or a document, leaves open.
PLACEHOLDER = re.compile(r"[<>{}\[\]]|^(?:YOUR|your|X+$|N+$|hh:mm)")
# `<your account>`: words of a placeholder, not of an option.
_OPEN = re.compile(r"<[^<>]*\s[^<>]*>|\[[^\[\]]*\s[^\[\]]*\]|\{\{.*\}\}|\$\$\{")
_PATHS = {
    "slurm": {"output", "error", "input", "chdir", "export-file"},
    "pbs": {"o", "e"},
    "cobalt": {"output", "error", "outputprefix", "debuglog", "inputfile", "cwd"},
}


def check_words(script: Script, header: Header, options: Options, report: Report) -> None:
    """How the scheduler's own rules split the directives."""
    typographic = {d.line for d in header.directives if _typographic(d, report)}
    broken = set(typographic)
    for directive in header.directives:
        if _comment_like(directive):
            broken.add(directive.line)  # rules_lines.check_comments
        elif directive.split.unmatched:
            broken.add(directive.line)
            report.add(
                "unmatched-quote",
                directive.line,
                f"{NAMES[header.scheduler]} refuses the script: the quote "
                f"{directive.split.unmatched} does not end on this line",
                "close the quote",
            )
        if header.scheduler == "slurm":
            _lost_in_slurm(directive, report)
        if _continuation(script, directive, report) and header.scheduler == "pbs":
            broken.add(directive.line)
    if header.scheduler == "cobalt":
        _quotes_of_cobalt(header, report)
    _strays(header, options, broken, report)
    for option in options.no_value:
        if option.line not in broken:
            _no_value(header, option, report)
    for option in options.options:
        _check_option(header, option, typographic, report)


def _comment_like(directive: Directive) -> bool:
    text = directive.text
    if directive.scheduler == "cobalt" or text[:1] in ("", *BLANKS) or text.startswith("-"):
        return False
    return not (directive.scheduler == "slurm" and text.startswith("#"))


def _typographic(directive: Directive, report: Report) -> bool:
    """Characters that a text processor or a web page put in place of plain ones."""
    text = directive.text
    if directive.scheduler == "slurm" and directive.split.comment:
        text = text[: len(text) - len(directive.split.comment)]
    at_fault = [
        char
        for index, char in enumerate(text)
        if char in _TYPOGRAPHIC
        and (
            "dash" not in _TYPOGRAPHIC[char]
            or index == 0
            or text[index - 1] in BLANKS + "-"
            or text[index - 1] in _TYPOGRAPHIC
        )
    ]
    if not at_fault:
        return False
    what = _TYPOGRAPHIC[at_fault[0]]
    report.add(
        "typographic-character",
        directive.line,
        f"{what} ({shown(at_fault[0])!r}, U+{ord(at_fault[0]):04X}) is an ordinary letter to "
        f"{NAMES[directive.scheduler]}, no option, blank or quote",
        'type the line anew with plain `-`, `"` and blanks',
    )
    return True


def _lost_in_slurm(directive: Directive, report: Report) -> None:
    split = directive.split
    if split.cut and split.comment is not None and not re.match(r"#+(?:\s|$)", split.comment):
        report.add(
            "value-cut",
            directive.line,
            f"`#` begins a comment even in the middle of a word: the value ends as "
            f"`{shown(split.words[-1].text)}`",
            "put the value in quotes, or a backslash before `#`",
        )
    for word in split.words:
        if word.lost:
            report.add(
                "backslash-lost",
                directive.line,
                f"sbatch takes backslashes away inside quotes too: the value is "
                f"`{shown(word.text)}`",
                "double each backslash",
            )


def _continuation(script: Script, directive: Directive, report: Report) -> bool:
    """A backslash at the end of a directive. Returns whether it does harm."""
    scheduler = directive.scheduler
    following = script.lines[directive.line : directive.line + 1]
    # PBS has joined what follows: the line itself still shows the backslash.
    own = script.lines[directive.line - 1] if scheduler == "pbs" else directive.text
    if not ends_with_backslash(own, scheduler):
        return False
    if scheduler == "slurm":
        if directive.split.comment or (following and following[0].startswith("#SBATCH")):
            return False  # harmless: both lines are read
        if not following or not following[0].strip(BLANKS):
            return False
        message = "sbatch knows no continued lines: the next line is not read as an option"
    elif scheduler == "pbs":
        if not following or not following[0].strip(BLANKS).startswith("#"):
            return False  # it goes on there, and what is no option is reported as such
        message = "qsub joins the next line as it stands, `#PBS` and all: a directive error"
    else:
        message = "Cobalt knows no continued lines: the backslash is a word of its own, and a stray"
    report.add(
        "line-continuation",
        directive.line,
        message,
        f"begin the next line with `{MARKERS[scheduler]} ` and leave the backslash out",
    )
    return True


def _quotes_of_cobalt(header: Header, report: Report) -> None:
    for directive in header.directives:
        words = directive.split.words
        for word in words:
            if word.text.startswith("#"):
                break
            # At the end of a line it is reported as a continuation.
            text = word.text.rstrip("\\") if word is words[-1] else word.text
            if "'" in text or '"' in text or "\\" in text:
                if re.search(r"\\[:=]", word.text) and not re.search("['\"]", word.text):
                    continue  # --env escapes
                report.add(
                    "quotes-kept",
                    directive.line,
                    "Cobalt knows neither quotes nor backslashes: they stay part of "
                    f"`{shown(word.text)}`, and a blank still parts words",
                    "leave them out; a value cannot hold a blank",
                )
                break


def _strays(header: Header, options: Options, broken: set[int], report: Report) -> None:
    """Words that belong to no option, and comments where there are none."""
    scheduler, name = header.scheduler, NAMES[header.scheduler]
    texts = {directive.line: directive for directive in header.directives}
    for word in options.strays:
        if word.line in broken or _OPEN.search(texts[word.line].text):
            continue
        rest = texts[word.line].text
        if scheduler == "cobalt" and re.search(r"['\"\\]", rest.partition(" #")[0]):
            continue  # the other half of a quoted value, reported already
        what = (
            "every option behind it is ignored, also those of later lines and of the command line"
            if scheduler == "cobalt"
            else "the script is refused"
        )
        if word.text.startswith("#"):
            report.add(
                "trailing-comment",
                word.line,
                f"{name} has no comments behind directives: `{shown(word.text)}` is a word, and "
                f"{what}",
                "put the comment below the directives"
                if scheduler == "cobalt"
                else "put the comment on a line of its own",
            )
        else:
            report.add(
                "stray-word",
                word.line,
                f"`{shown(word.text)}` belongs to no option: {what}",
                "quote a value that has blanks"
                if scheduler != "cobalt"
                else "take it out: no value can hold a blank",
            )


def _no_value(header: Header, option: Option, report: Report) -> None:
    swallows = option.value
    what = (
        f"it takes `{shown(swallows)}` of the next line for its value"
        if swallows
        else f"{NAMES[header.scheduler]} refuses the script"
    )
    report.add(
        "missing-value",
        option.line,
        f"`{option.spelling}` needs a value: {what}",
        "give the value, or take the option out",
    )


def _check_option(header: Header, option: Option, typographic: set[int], report: Report) -> None:
    scheduler, name = header.scheduler, NAMES[header.scheduler]
    if not option.known and option.line not in typographic:
        _unknown(header, option, report)
        return
    value = option.value or ""
    if option.attached and value.startswith("=") and len(value) > 1:
        report.add(
            "short-option-equals",
            option.line,
            f"a letter takes no `=`: the value of {option.spelling} is `{shown(value)}`",
            f"write `{option.spelling} {shown(value[1:])}`",
        )
    if _VARIABLE.search(value) and "$$" not in value:
        _variable(header, option, report)
    elif option.name in _PATHS[scheduler] and re.match(r"~\w*(?:/|$)", value):
        report.add(
            "tilde-in-path",
            option.line,
            f"{name} does not expand `~`: the path is `{shown(value)}`, in a directory called `~`",
            "write the path out",
        )


def _unknown(header: Header, option: Option, report: Report) -> None:
    """Slurm's plug-ins add options, so what looks like none may be one there; Cobalt has no
    plug-ins."""
    is_refused = header.scheduler == "cobalt" and not is_placeholder(option.spelling)
    if option.torque or not (is_refused or option.spelling.startswith("--")):
        return
    meant = likely_meant(option.spelling, header.scheduler)
    if meant is None and header.scheduler != "pbs":
        longer = [n for n in GRAMMARS[header.scheduler].all_long if n.startswith(option.spelling)]
        if len(longer) > 1:
            meant = min(longer, key=len)
    if meant is not None:
        report.add(
            "unknown-option",
            option.line,
            f"{NAMES[header.scheduler]} has no option `{option.spelling}`, and refuses the script",
            f"write `{meant}`",
        )
    elif is_refused:
        report.add(
            "unknown-option",
            option.line,
            f"Cobalt has no option `{option.spelling}`, and refuses the script",
            "take it out; `man qsub` lists the options",
        )


# Cobalt's server fills these in, in some options.
_COBALT_OWN = re.compile(r"\$(?:\{?COBALT_JOBID\b\}?|\{?jobid\b\}?)")
_COBALT_FILLED = {"env", "jobname", "output", "error", "outputprefix", "debuglog"}


def _variable(header: Header, option: Option, report: Report) -> None:
    """A directive is a comment to the shell: nothing in it is expanded."""
    scheduler, value = header.scheduler, option.value or ""
    hints = {
        "slurm": "write the value out, use sbatch's own %j, %x, %u in file names, or give the "
        "option on the command line",
        "pbs": "write the value out, or give the option on qsub's command line",
        "cobalt": "write the value out, or give the option on qsub's command line",
    }
    if scheduler == "cobalt" and option.name in _COBALT_FILLED:
        value = _COBALT_OWN.sub("", value)
        if not _VARIABLE.search(value):
            return
    found = _VARIABLE.search(value)
    what = shown(value[found.start() :] if found else value, 30)
    if scheduler == "pbs" and option.name in ("o", "e") and "$PBS_" in value.replace("{", ""):
        report.add(
            "variable-in-log-path",
            option.line,
            f"OpenPBS takes `{what}` literally as a file name; Torque, and some sites, expand it",
            "give a directory: PBS names the file by the job itself",
        )
        return
    where = (
        ", though the remote shell may" if scheduler == "cobalt" and option.name == "env" else ""
    )
    report.add(
        "variable-in-directive",
        option.line,
        f"{NAMES[scheduler]} does not expand `{what}` in a directive{where}: "
        f"{option.spelling} gets it literally",
        hints[scheduler],
    )


def same_value_twice(options: list[Option]) -> list[Option]:
    """Those options of a name that differ from the one before."""
    return [two for one, two in itertools.pairwise(options) if one.value != two.value]


def is_typographic(text: str) -> bool:
    """Whether a text processor's dash, quote or blank is in it."""
    return any(letter in _TYPOGRAPHIC for letter in text)


def is_placeholder(value: str) -> bool:
    """Whether a value is left open, as in a document's example or a template."""
    return PLACEHOLDER.search(value) is not None or "$" in value or "%" in value
