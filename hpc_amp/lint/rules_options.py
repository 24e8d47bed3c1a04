"""Rules about the words of directives, and about options and their values."""

from __future__ import annotations

import itertools
import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_lines import is_comment_like
from hpc_amp.lint.script import LintedScript
from hpc_amp.schedulers.grammar import Directive, Grammar, Header, Option, Options
from hpc_amp.schedulers.words import BLANKS

_TYPOGRAPHIC = {
    "\u00a0": "a no-break space",
    "\u200b": "a zero-width space",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "a typographic dash"),
    **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019\u201a", "a typographic quote"),
}
VARIABLE = re.compile(r"\$(?:\{\w+|[A-Za-z_]\w*|\()|`")
# What a template, or a document, leaves open.
PLACEHOLDER = re.compile(r"[<>{}\[\]]|^(?:YOUR|your|X+$|N+$|hh:mm)")
# `<your account>`: words of a placeholder, not of an option.
_OPEN = re.compile(r"<[^<>]*\s[^<>]*>|\[[^\[\]]*\s[^\[\]]*\]|\{\{.*\}\}|\$\$\{")


def check_words(
    script: LintedScript, header: Header, options: Options, report: FileFindings
) -> None:
    """How the scheduler's own rules split the directives."""
    grammar = header.grammar
    typographic = {d.line for d in header.directives if _typographic(d, grammar, report)}
    broken = set(typographic)
    for directive in header.directives:
        if is_comment_like(directive, grammar):
            broken.add(directive.line)  # rules_lines.check_comments
        elif directive.split.unmatched:
            broken.add(directive.line)
            report.add(
                "unmatched-quote",
                directive.line,
                f"{grammar.title} refuses the script: the quote "
                f"{directive.split.unmatched} does not end on this line",
                "close the quote",
            )
        _lost(directive, grammar, report)
        if _continuation(script, directive, grammar, report) and grammar.backslash == "joins":
            broken.add(directive.line)
    if not grammar.has_quotes:
        _quotes(header, report)
    _strays(header, options, broken, report)
    for option in options.no_value:
        if option.line not in broken:
            _no_value(header, option, report)
    for option in options.options:
        _check_option(header, option, typographic, report)


def _typographic(directive: Directive, grammar: Grammar, report: FileFindings) -> bool:
    """Characters that a text processor or a web page put in place of plain ones."""
    text = directive.text
    if directive.split.comment:
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
        f"{grammar.title}, no option, blank or quote",
        'type the line anew with plain `-`, `"` and blanks',
    )
    return True


def _lost(directive: Directive, grammar: Grammar, report: FileFindings) -> None:
    split = directive.split
    if split.cut and split.comment is not None and not re.match(r"#+(?:\s|$)", split.comment):
        report.add(
            "value-cut",
            directive.line,
            f"`#` begins a comment even in the middle of a word: the value ends as "
            f"`{shown(split.words[-1].text)}`",
            "put the value in quotes, or a backslash before `#`"
            if grammar.quotes_keep_hash
            else f"give the option on {grammar.command}'s command line: no quotes keep the `#`",
        )
    for word in split.words:
        if word.lost:
            report.add(
                "backslash-lost",
                directive.line,
                f"{grammar.command} takes backslashes away inside quotes too: the value is "
                f"`{shown(word.text)}`",
                "double each backslash",
            )


def _continuation(
    script: LintedScript, directive: Directive, grammar: Grammar, report: FileFindings
) -> bool:
    """A backslash at the end of a directive. Returns whether it does harm."""
    following = script.lines[directive.line : directive.line + 1]
    # Where what follows has been joined, the line itself still shows the backslash.
    joins = grammar.backslash == "joins"
    own = script.lines[directive.line - 1] if joins else directive.text
    if not grammar.ends_with_backslash(own):
        return False
    if grammar.backslash == "lost":
        if directive.split.comment or (following and grammar.text_of(following[0]) is not None):
            return False  # harmless: both lines are read
        if not following or not following[0].strip(BLANKS):
            return False
        message = (
            f"{grammar.command} knows no continued lines: the next line is not read as an option"
        )
    elif grammar.backslash == "joins":
        if not following or not following[0].strip(BLANKS).startswith("#"):
            return False  # it goes on there, and what is not an option is reported as such
        message = (
            f"{grammar.command} joins the next line as it stands, `{grammar.marker}` and all: a "
            "directive error"
        )
    else:
        message = (
            f"{grammar.title} knows no continued lines: the backslash is a word of its own, and a "
            "stray"
        )
    report.add(
        "line-continuation",
        directive.line,
        message,
        f"begin the next line with `{grammar.marker} ` and leave the backslash out",
    )
    return True


def _quotes(header: Header, report: FileFindings) -> None:
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
                    f"{header.grammar.title} knows neither quotes nor backslashes: they stay part "
                    f"of `{shown(word.text)}`, and a blank still parts words",
                    "leave them out; a value cannot hold a blank",
                )
                break


def _strays(header: Header, options: Options, broken: set[int], report: FileFindings) -> None:
    """Words that belong to no option, and comments where there are none."""
    grammar = header.grammar
    texts = {directive.line: directive for directive in header.directives}
    for word in options.strays:
        if word.line in broken or _OPEN.search(texts[word.line].text):
            continue
        rest = texts[word.line].text
        if not grammar.has_quotes and re.search(r"['\"\\]", rest.partition(" #")[0]):
            continue  # the other half of a quoted value, reported already
        what = (
            "every option behind it is ignored, also those of later lines and of the command line"
            if grammar.stops_at_stray
            else "the script is refused"
        )
        if word.text.startswith("#"):
            report.add(
                "trailing-comment",
                word.line,
                f"{grammar.title} has no comments behind directives: `{shown(word.text)}` is a "
                f"word, and {what}",
                "put the comment below the directives"
                if grammar.stops_at_stray
                else "put the comment on a line of its own",
            )
        else:
            report.add(
                "stray-word",
                word.line,
                f"`{shown(word.text)}` belongs to no option: {what}",
                "quote a value that has blanks"
                if grammar.has_quotes
                else "take it out: no value can hold a blank",
            )


def _no_value(header: Header, option: Option, report: FileFindings) -> None:
    swallows = option.value
    what = (
        f"it takes `{shown(swallows)}` of the next line for its value"
        if swallows
        else f"{header.grammar.title} refuses the script"
    )
    report.add(
        "missing-value",
        option.line,
        f"`{option.spelling}` needs a value: {what}",
        "give the value, or take the option out",
    )


def _check_option(
    header: Header, option: Option, typographic: set[int], report: FileFindings
) -> None:
    grammar = header.grammar
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
    if VARIABLE.search(value) and "$$" not in value:
        _variable(header, option, report)
    elif option.name in grammar.paths and re.match(r"~\w*(?:/|$)", value):
        report.add(
            "tilde-in-path",
            option.line,
            f"{grammar.title} does not expand `~`: the path is `{shown(value)}`, in a directory "
            "called `~`",
            "write the path out",
        )


def _unknown(header: Header, option: Option, report: FileFindings) -> None:
    """Where plug-ins add options, what looks like none may be one."""
    grammar = header.grammar
    is_refused = grammar.complete and not is_placeholder(option.spelling)
    if option.related or not (is_refused or option.spelling.startswith("--")):
        return
    meant = grammar.options.likely_meant(option.spelling)
    if meant is None:
        longer = [name for name in grammar.options.all_long if name.startswith(option.spelling)]
        if len(longer) > 1:
            meant = min(longer, key=len)
    if meant is not None:
        report.add(
            "unknown-option",
            option.line,
            f"{grammar.title} has no option `{option.spelling}`, and refuses the script",
            f"write `{meant}`",
        )
    elif is_refused:
        report.add(
            "unknown-option",
            option.line,
            f"{grammar.title} has no option `{option.spelling}`, and refuses the script",
            f"take it out; `man {grammar.command}` lists the options",
        )


def _variable(header: Header, option: Option, report: FileFindings) -> None:
    """A directive is a comment to the shell: nothing in it is expanded."""
    grammar = header.grammar
    value = grammar.without_own_variables(option)
    found = VARIABLE.search(value)
    if found is None:
        return
    # Cobalt gives these to the ranks through a remote shell.
    is_env_of_cobalt = grammar.name == "cobalt" and option.name == "env"
    where = ", though the remote shell may" if is_env_of_cobalt else ""
    report.add(
        "variable-in-directive",
        option.line,
        f"{grammar.title} does not expand `{shown(value[found.start() :], 30)}` in a directive"
        f"{where}: {option.spelling} gets it literally",
        grammar.instead_of_variables,
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
