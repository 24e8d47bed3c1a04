"""Rules about lines: the file as a whole, and which lines are directives and which are not."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.script import LintedScript
from hpc_amp.lint.shell import Shell
from hpc_amp.schedulers.grammar import Directive, Grammar, Header
from hpc_amp.schedulers.options import one_edit_apart
from hpc_amp.schedulers.words import BLANKS

# An option behind a marker: without one a comment is only a comment.
_OPTION = r"\s*[-\u2010-\u2015\u2212]{1,2}[A-Za-z]"


# Other schedulers' markers: a line with one is not misspelt.
_MARKERS = ("SBATCH", "PBS", "COBALT", "BSUB", "FLUX", "OAR")


def check_file(script: LintedScript, grammars: list[Grammar], report: FileFindings) -> None:
    """What makes a scheduler refuse the whole file, or ignore it."""
    if script.has_bom:
        report.add(
            "byte-order-mark",
            1,
            "the file begins with an invisible byte order mark: Slurm refuses it, PBS and Cobalt "
            "silently ignore every directive",
            "save it as UTF-8 without BOM: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE",
        )
    if script.first_crlf is not None:
        names = [one.title for one in grammars if one.refuses_crlf]
        refused = f"{' and '.join(names)} refuse{'s' if len(names) == 1 else ''} such a file, and "
        report.add(
            "crlf",
            script.first_crlf,
            f"DOS line ends (CRLF): {refused if names else ''}the shell takes the carriage return "
            "for part of the last word",
            "convert it: sed -i 's/\\r$//' FILE",
        )
    minds = [one.without_shebang for one in grammars if one.without_shebang]
    if minds and not script.has_shebang and not script.has_bom:
        report.add(
            "missing-shebang",
            1,
            f"{' and '.join(minds)} whose first line does not begin with `#!`",
            "make `#!/bin/bash` the very first line, with nothing before it",
        )


def has_header(script: LintedScript, grammar: Grammar, shell: Shell | None) -> bool:
    """Whether a script means to talk to a scheduler, be it in vain."""
    header = grammar.read(script.lines)
    if grammar.is_meant(header):
        return True
    marker = grammar.marker
    comments = _own_comments(shell)
    for number, line in enumerate(script.lines, 1):
        bare_command = number == header.end and line.startswith(marker[1:])
        if number >= header.end and number not in comments and not bare_command:
            continue
        if _near_miss(line, grammar):
            return True
        if number >= header.end and re.match(rf"{re.escape(marker)}{_OPTION}", line.strip(BLANKS)):
            return True
    return False


def _own_comments(shell: Shell | None) -> set[int]:
    """Lines among the commands that are comments, and not the text of another script. What is no
    shell script cannot be told apart so well: only its head counts."""
    return set() if shell is None else {one.line for one in shell.comments if one.alone}


def _near_miss(line: str, grammar: Grammar) -> str | None:
    """Why a line that looks like a directive is none; None for lines that do not look like one.
    `##SBATCH`, `# #SBATCH`, `#xSBATCH` are how people switch a directive off: not reported."""
    marker = grammar.marker
    bare = line.strip(BLANKS)
    name = marker[1:]
    if bare.startswith(marker):
        if not re.match(rf"{re.escape(marker)}{_OPTION}", bare):
            return None
        return grammar.why_unread(line)
    if re.match(rf"#[ \t]+{re.escape(name)}{_OPTION}", bare):
        return "commented out"
    if re.match(rf"#!\s*{re.escape(name)}{_OPTION}", bare):
        return f"begins with `#!`, not `{marker}`"
    if re.match(rf"{re.escape(name)}{_OPTION}", bare):
        return "no `#`: the shell would run it as a command"
    found = re.match(rf"#(\w{{2,12}}){_OPTION}", bare)
    if found is None or found[1].upper() in _MARKERS:
        word = found[1] if found else ""
        return "not in capital letters" if word.upper() == name and word != name else None
    if len(name) > 3 and one_edit_apart(found[1].upper(), name) and not found[1].endswith(name):
        return f"misspelt, not `{marker}`"
    if name == "PBS" and found[1] in ("PSB", "BPS"):
        return "misspelt, not `#PBS`"
    return None


def check_lines(
    script: LintedScript, header: Header, shell: Shell | None, given: set[str], report: FileFindings
) -> None:
    """Directives that are never read, and lines that only look like one. `given` are the options
    that the scheduler does read."""
    grammar = header.grammar
    marker, name = grammar.marker, grammar.title
    comments = _own_comments(shell)
    read = {directive.line for directive in header.directives}
    why_ended = _why_ended(script, header)
    for number, line in enumerate(script.lines, 1):
        if number in read or number == 1:
            continue
        bare = line.strip(BLANKS)
        late = number >= header.end
        bare_command = number == header.end and bare.startswith(marker[1:])
        if late and number not in comments and not bare_command:
            continue
        miss = _near_miss(line, grammar)
        if miss is None:
            if late and re.match(rf"{re.escape(marker)}{_OPTION}", bare):
                report.add(
                    "directive-never-read",
                    number,
                    f"{name} stopped reading directives at line {header.end}"
                    f" ({why_ended}): `{shown(bare, 40)}` is never read",
                    f"move it above line {header.end}",
                )
            continue
        if late and miss in ("commented out", "not in capital letters") and header.directives:
            continue  # among the commands: a comment
        if miss == "commented out":
            _commented_out(number, bare, marker, header, given, report)
        elif bare.startswith(marker):
            report.add(
                "directive-never-read",
                number,
                f"{miss}: {name} does not read `{shown(bare, 40)}`",
                f"begin the line with `{marker} ` at column 1",
            )
        else:
            report.add(
                "directive-misspelt",
                number,
                f"{miss}: {name} does not read `{shown(bare, 40)}`",
                f"write `{marker}`, or `#{marker}` if it is switched off on purpose",
            )


def _commented_out(
    number: int, bare: str, marker: str, header: Header, given: set[str], report: FileFindings
) -> None:
    """`# SBATCH --x`: a slip, or switched off. It is surely no alternative if the script gives the
    option nowhere else; and a script without any other directive asks for nothing at all."""
    option = re.search(r"(--[\w-]+|-[A-Za-z])", bare)
    canonical = header.grammar.options.canonical(option[1]) if option else None
    if canonical is None or (header.directives and canonical in given):
        return
    if header.directives:
        message = f"a blank behind `#` makes it a comment: `{shown(bare, 40)}` is not read"
    else:
        message = (
            f"a blank behind `#` makes it a comment: `{shown(bare, 40)}` is not read, and the "
            "script has no directive that is"
        )
    report.add(
        "directive-commented-out",
        number,
        message,
        f"write `{marker} …`, or `#{marker} …` if it is switched off on purpose",
    )


def _why_ended(script: LintedScript, header: Header) -> str:
    if header.end > len(script.lines):
        return "the end of the file"
    line = script.lines[header.end - 1]
    bare = line.strip(BLANKS)
    if not bare:
        return "a blank line"
    if bare.startswith("#"):
        return f"`{shown(bare, 30)}` is not a directive"
    return f"the command `{shown(bare, 30)}`"


def is_comment_like(directive: Directive, grammar: Grammar) -> bool:
    """Whether a directive looks like a comment that begins with the marker's letters. Where a blank
    has to follow the marker, there is none such."""
    text = directive.text
    if grammar.needs_blank or text[:1] in ("", *BLANKS) or text.startswith("-"):
        return False
    return not (grammar.has_comments and text.startswith("#"))


def check_comments(header: Header, report: FileFindings) -> None:
    """Comments that begin like a directive: the scheduler takes them for one."""
    grammar = header.grammar
    marker, name = grammar.marker, grammar.title
    for directive in header.directives:
        text = directive.text
        if not is_comment_like(directive, grammar):
            continue
        if ord(text[0]) > 127:
            continue  # a no-break space or a long dash: reported as such
        report.add(
            "comment-is-directive",
            directive.line,
            f"{name} takes every line that begins with `{marker}` for a directive, "
            f"`{shown(marker + text, 40)}` too, and refuses the script",
            f"begin the comment otherwise: `# {shown((marker + text)[1:], 40)}`",
        )
