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
# Placeholders in templates and documents.
PLACEHOLDER = re.compile(r"[<>{}\[\]]|^(?:YOUR|your|X+$|N+$|hh:mm)")
# A placeholder of several words, such as `<your account>`.
_OPEN = re.compile(r"<[^<>]*\s[^<>]*>|\[[^\[\]]*\s[^\[\]]*\]|\{\{.*\}\}|\$\$\{")


def check_words(
    script: LintedScript, header: Header, options: Options, report: FileFindings
) -> None:
    """Check how the scheduler splits the directives into words, and the options in them."""
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
    """Check for dashes, quotes and blanks that a text processor or a web page has replaced."""
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
        f"{what} ({shown(at_fault[0])!r}, U+{ord(at_fault[0]):04X}): {grammar.title} does not read "
        "it as a dash, a quote or a blank",
        'type the line again with plain `-`, `"` and blanks',
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
            "write the value in quotes, or a backslash before `#`"
            if grammar.quotes_keep_hash
            else f"use the option on {grammar.command}'s command line: quotes do not protect `#`",
        )
    for word in split.words:
        if word.lost:
            report.add(
                "backslash-lost",
                directive.line,
                f"{grammar.command} removes backslashes also inside quotes: the value is "
                f"`{shown(word.text)}`",
                "double each backslash",
            )


def _continuation(
    script: LintedScript, directive: Directive, grammar: Grammar, report: FileFindings
) -> bool:
    """Check for a backslash at the end of a directive. Returns whether it is an error."""
    following = script.lines[directive.line : directive.line + 1]
    # If the next line has been joined, the directive no longer ends with the backslash.
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
            f"{grammar.command} has no continuation lines: the next line is not read as an option"
        )
    elif grammar.backslash == "joins":
        if not following or not following[0].strip(BLANKS).startswith("#"):
            return False  # the directive continues there; stray words are reported elsewhere
        message = (
            f"{grammar.command} joins the next line including its `{grammar.marker}`, and refuses "
            "the directive"
        )
    else:
        message = (
            f"{grammar.title} has no continuation lines: the backslash is a separate word that "
            "belongs to no option"
        )
    report.add(
        "line-continuation",
        directive.line,
        message,
        f"begin the next line with `{grammar.marker} ` and remove the backslash",
    )
    return True


def _quotes(header: Header, report: FileFindings) -> None:
    for directive in header.directives:
        words = directive.split.words
        for word in words:
            if word.text.startswith("#"):
                break
            # A backslash at the end of the line is reported as a continuation.
            text = word.text.rstrip("\\") if word is words[-1] else word.text
            if "'" in text or '"' in text or "\\" in text:
                if re.search(r"\\[:=]", word.text) and not re.search("['\"]", word.text):
                    continue  # --env escapes
                report.add(
                    "quotes-kept",
                    directive.line,
                    f"{header.grammar.title} has neither quotes nor backslashes: they remain part "
                    f"of `{shown(word.text)}`, and a blank still separates words",
                    "remove them; a value cannot contain a blank",
                )
                break


def _strays(header: Header, options: Options, broken: set[int], report: FileFindings) -> None:
    """Check for words that belong to no option, and for comments after directives."""
    grammar = header.grammar
    texts = {directive.line: directive for directive in header.directives}
    for word in options.strays:
        if word.line in broken or _OPEN.search(texts[word.line].text):
            continue
        rest = texts[word.line].text
        if not grammar.has_quotes and re.search(r"['\"\\]", rest.partition(" #")[0]):
            continue  # the second half of a quoted value, which is reported already
        what = (
            "all options after it are ignored, also on later lines and on the command line"
            if grammar.stops_at_stray
            else "the script is refused"
        )
        if word.text.startswith("#"):
            report.add(
                "trailing-comment",
                word.line,
                f"{grammar.title} does not allow comments after directives: `{shown(word.text)}` "
                f"is read as a word, and {what}",
                "move the comment below the directives"
                if grammar.stops_at_stray
                else "move the comment to a separate line",
            )
        else:
            report.add(
                "stray-word",
                word.line,
                f"`{shown(word.text)}` belongs to no option: {what}",
                "put a value with blanks in quotes"
                if grammar.has_quotes
                else "remove it: a value cannot contain a blank",
            )


def _no_value(header: Header, option: Option, report: FileFindings) -> None:
    what = f"{header.grammar.title} refuses the script"
    if option.value:
        what = f"it reads `{shown(option.value)}` of the next line as its value"
    report.add(
        "missing-value",
        option.line,
        f"`{option.spelling}` needs a value: {what}",
        "give the value, or remove the option",
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
            f"a short option has no `=`: the value of {option.spelling} is `{shown(value)}`",
            f"write `{option.spelling} {shown(value[1:])}`",
        )
    if VARIABLE.search(value) and "$$" not in value:
        _variable(header, option, report)
    elif option.name in grammar.paths and re.match(r"~\w*(?:/|$)", value):
        report.add(
            "tilde-in-path",
            option.line,
            f"{grammar.title} does not expand `~`: the path is `{shown(value)}`, in a folder "
            "called `~`",
            "write the full path",
        )


def _unknown(header: Header, option: Option, report: FileFindings) -> None:
    """Report an unknown option, unless a plug-in of the scheduler may have added it."""
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
            f"remove it; `man {grammar.command}` lists the options",
        )


def _variable(header: Header, option: Option, report: FileFindings) -> None:
    """Check for variables. The shell does not expand them, because a directive is a comment."""
    grammar = header.grammar
    value = grammar.without_own_variables(option)
    found = VARIABLE.search(value)
    if found is None:
        return
    # Cobalt passes these values to the ranks through a remote shell.
    is_env_of_cobalt = grammar.name == "cobalt" and option.name == "env"
    where = ", though the remote shell may" if is_env_of_cobalt else ""
    report.add(
        "variable-in-directive",
        option.line,
        f"{grammar.title} does not expand `{shown(value[found.start() :], 30)}` in a directive"
        f"{where}: {option.spelling} gets this text",
        grammar.instead_of_variables,
    )


def same_value_twice(options: list[Option]) -> list[Option]:
    """The options whose value differs from that of the option before. All have the same name."""
    return [two for one, two in itertools.pairwise(options) if one.value != two.value]


def is_typographic(text: str) -> bool:
    """Whether a text contains a typographic dash, quote or blank."""
    return any(letter in _TYPOGRAPHIC for letter in text)


def is_placeholder(value: str) -> bool:
    """Whether a value is a placeholder of a template or an example."""
    return PLACEHOLDER.search(value) is not None or "$" in value or "%" in value
