"""Rules about lines: the file as a whole, and which lines are directives and which are not."""

from __future__ import annotations

import re

from hpc_amp.lint.directives import BLANKS, MARKERS, NAMES, Header, SchedulerName, read_header
from hpc_amp.lint.findings import Report, shown
from hpc_amp.lint.options import GRAMMARS, one_edit_apart
from hpc_amp.lint.script import Script
from hpc_amp.lint.shell import Shell

# An option behind a marker: without one a comment is only a comment.
_OPTION = r"\s*[-\u2010-\u2015\u2212]{1,2}[A-Za-z]"


def check_file(script: Script, schedulers: list[SchedulerName], report: Report) -> None:
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
        names = [NAMES[one] for one in schedulers if one != "cobalt"]
        refused = f"{' and '.join(names)} refuse{'s' if len(names) == 1 else ''} such a file, and "
        report.add(
            "crlf",
            script.first_crlf,
            f"DOS line ends (CRLF): {refused if names else ''}the shell takes the carriage return "
            "for part of the last word",
            "convert it: sed -i 's/\\r$//' FILE",
        )
    needs = [NAMES[one] for one in schedulers if one != "pbs"]
    if needs and not script.has_shebang and not script.has_bom:
        what = {
            "Slurm": "sbatch refuses a script",
            "Cobalt": "Cobalt reads no directive of a script",
        }
        said = " and ".join(what[name] for name in needs)
        report.add(
            "missing-shebang",
            1,
            f"{said} whose first line does not begin with `#!`",
            "make `#!/bin/bash` the very first line, with nothing before it",
        )


def has_header(script: Script, scheduler: SchedulerName, shell: Shell | None) -> bool:
    """Whether a script means to talk to a scheduler, be it in vain."""
    header = read_header(script, scheduler)
    if header.directives:
        return True
    marker = MARKERS[scheduler]
    comments = _own_comments(shell)
    for number, line in enumerate(script.lines, 1):
        bare_command = number == header.end and line.startswith(marker[1:])
        if number >= header.end and number not in comments and not bare_command:
            continue
        if _near_miss(line, scheduler):
            return True
        if number >= header.end and re.match(rf"{marker}{_OPTION}", line.strip(BLANKS)):
            return True
    return False


def _own_comments(shell: Shell | None) -> set[int]:
    """Lines among the commands that are comments, and not the text of another script. What is no
    shell script cannot be told apart so well: only its head counts."""
    return set() if shell is None else {one.line for one in shell.comments if one.alone}


def _near_miss(line: str, scheduler: SchedulerName) -> str | None:
    """Why a line that looks like a directive is none; None for lines that do not look like one.
    `##SBATCH`, `# #SBATCH`, `#xSBATCH` are how people switch a directive off: not reported."""
    marker = MARKERS[scheduler]
    bare = line.strip(BLANKS)
    name = marker[1:]
    if bare.startswith(marker):
        if not re.match(rf"{marker}{_OPTION}", bare):
            return None
        if scheduler == "cobalt":
            if not line.startswith("#"):
                return "blanks before the marker"
            if not line.startswith("#COBALT "):
                return "not exactly one `#COBALT` and a blank"
            return None
        return "blanks before the marker" if scheduler == "slurm" and line[0] != "#" else None
    if re.match(rf"#[ \t]+{name}{_OPTION}", bare):
        return "commented out"
    if re.match(rf"#!\s*{name}{_OPTION}", bare):
        return f"begins with `#!`, not `{marker}`"
    if re.match(rf"{name}{_OPTION}", bare):
        return "no `#`: the shell would run it as a command"
    found = re.match(rf"#(\w{{2,12}}){_OPTION}", bare)
    if found is None or found[1].upper() in ("SBATCH", "PBS", "COBALT", "BSUB", "FLUX", "OAR"):
        word = found[1] if found else ""
        return "not in capital letters" if word.upper() == name and word != name else None
    if len(name) > 3 and one_edit_apart(found[1].upper(), name) and not found[1].endswith(name):
        return f"misspelt, not `{marker}`"
    if name == "PBS" and found[1] in ("PSB", "BPS"):
        return "misspelt, not `#PBS`"
    return None


def check_lines(
    script: Script, header: Header, shell: Shell | None, given: set[str], report: Report
) -> None:
    """Directives that are never read, and lines that only look like one. `given` are the options
    that the scheduler does read."""
    scheduler = header.scheduler
    marker, name = MARKERS[scheduler], NAMES[scheduler]
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
        miss = _near_miss(line, scheduler)
        if miss is None:
            if late and re.match(rf"{marker}{_OPTION}", bare):
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
        elif miss == "blanks before the marker" or miss.startswith("not exactly"):
            report.add(
                "directive-never-read",
                number,
                f"{miss}: {name} does not read `{shown(bare, 40)}`"
                + (" and ends its header here" if scheduler == "cobalt" and not late else ""),
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
    number: int, bare: str, marker: str, header: Header, given: set[str], report: Report
) -> None:
    """`# SBATCH --x`: a slip, or switched off. It is surely no alternative if the script gives the
    option nowhere else; and a script without any other directive asks for nothing at all."""
    option = re.search(r"(--[\w-]+|-[A-Za-z])", bare)
    canonical = GRAMMARS[header.scheduler].canonical(option[1]) if option else None
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


def _why_ended(script: Script, header: Header) -> str:
    if header.end > len(script.lines):
        return "the end of the file"
    line = script.lines[header.end - 1]
    bare = line.strip(BLANKS)
    if not bare:
        return "a blank line"
    if header.scheduler == "cobalt" and bare.startswith("#"):
        return f"`{shown(bare, 30)}` is no directive"
    return f"the command `{shown(bare, 30)}`"


def check_comments(header: Header, report: Report) -> None:
    """Comments that begin like a directive: the scheduler takes them for one."""
    scheduler = header.scheduler
    if scheduler == "cobalt":  # needs a blank behind the marker: the rest is a stray word
        return
    marker, name = MARKERS[scheduler], NAMES[scheduler]
    for directive in header.directives:
        text = directive.text
        if text[:1] in ("", *BLANKS) or text.startswith("-"):
            continue
        if scheduler == "slurm" and text.startswith("#"):
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
