"""Rules about the file as a whole, and about which lines are directives."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.script import LintedScript
from hpc_amp.lint.shell import Shell
from hpc_amp.schedulers.grammar import Directive, Grammar, Header
from hpc_amp.schedulers.options import one_edit_apart
from hpc_amp.schedulers.words import BLANKS

# An option after a marker. A line without an option is an ordinary comment.
_OPTION = r"\s*[-\u2010-\u2015\u2212]{1,2}[A-Za-z]"


# Markers of schedulers. A line with one of them is not a misspelt marker.
_MARKERS = ("SBATCH", "PBS", "COBALT", "BSUB", "FLUX", "OAR")


def check_file(script: LintedScript, grammars: list[Grammar], report: FileFindings) -> None:
    """Check for problems that make a scheduler refuse or ignore the whole file."""
    if script.has_bom:
        report.add(
            "byte-order-mark",
            1,
            "the file begins with an invisible byte order mark: Slurm refuses the file, PBS and "
            "Cobalt ignore all directives without a message",
            "save it as UTF-8 without BOM: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE",
        )
    if script.first_crlf is not None:
        names = [one.title for one in grammars if one.refuses_crlf]
        refused = f"{' and '.join(names)} refuse{'s' if len(names) == 1 else ''} such a file, and "
        report.add(
            "crlf",
            script.first_crlf,
            f"DOS line ends (CRLF): {refused if names else ''}the shell reads the carriage return "
            "as part of the last word",
            "convert it: sed -i 's/\\r$//' FILE",
        )
    objections = [one.without_shebang for one in grammars if one.without_shebang]
    if objections and not script.has_shebang and not script.has_bom:
        report.add(
            "missing-shebang",
            1,
            f"{' and '.join(objections)} whose first line does not begin with `#!`",
            "make `#!/bin/bash` the first line, with nothing before it",
        )


def has_header(script: LintedScript, grammar: Grammar, shell: Shell | None) -> bool:
    """Whether a script has directives for a scheduler, or lines that look like them."""
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
    """The lines that are comments of the script itself, not of a here-document.

    Empty if the script is not a shell script.
    """
    return set() if shell is None else {one.line for one in shell.comments if one.alone}


def _near_miss(line: str, grammar: Grammar) -> str | None:
    """Why a line that looks like a directive is not read, or None if it does not look like one.

    `##SBATCH`, `# #SBATCH` and `#xSBATCH` are usual ways to disable a directive. They give None.
    """
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
        return "without `#`, the shell would run it as a command"
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
    """Check for directives that are never read and for lines that only look like directives.

    `given` has the names of the options that the scheduler does read.
    """
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
            continue  # probably an ordinary comment among the commands
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
                f"write `{marker}`, or `#{marker}` to disable the directive",
            )


def _commented_out(
    number: int, bare: str, marker: str, header: Header, given: set[str], report: FileFindings
) -> None:
    """Report `# SBATCH --x`, which is a mistake or a disabled directive.

    It is not reported if the script gives the same option elsewhere, because then it is probably a
    disabled alternative.
    """
    option = re.search(r"(--[\w-]+|-[A-Za-z])", bare)
    canonical = header.grammar.options.canonical(option[1]) if option else None
    if canonical is None or (header.directives and canonical in given):
        return
    message = f"the blank after `#` makes this line a comment: `{shown(bare, 40)}` is not read"
    if not header.directives:
        message += ", and the script has no other directives"
    report.add(
        "directive-commented-out",
        number,
        message,
        f"write `{marker} …`, or `#{marker} …` to disable the directive",
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
    """Whether a directive seems to be a comment that happens to begin with the marker.

    This cannot happen if the scheduler needs a blank after its marker.
    """
    text = directive.text
    if grammar.needs_blank or text[:1] in ("", *BLANKS) or text.startswith("-"):
        return False
    return not (grammar.has_comments and text.startswith("#"))


def check_comments(header: Header, report: FileFindings) -> None:
    """Check for comments that the scheduler reads as directives."""
    grammar = header.grammar
    marker, name = grammar.marker, grammar.title
    for directive in header.directives:
        text = directive.text
        if not is_comment_like(directive, grammar):
            continue
        if ord(text[0]) > 127:
            continue  # reported as typographic-character
        report.add(
            "comment-is-directive",
            directive.line,
            f"{name} reads every line that begins with `{marker}` as a directive, also "
            f"`{shown(marker + text, 40)}`, and refuses the script",
            f"begin the comment differently: `# {shown((marker + text)[1:], 40)}`",
        )
