"""`hpc-amp migrate`: update scripts that use apex.amp, old torch.cuda.amp or manual fp16."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import json_option

if TYPE_CHECKING:
    from hpc_amp.migrate.files import Scanned, Target


@click.command()
@click.argument(
    "paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--write", is_flag=True, help="Make the mechanical changes in the files.")
@click.option("--diff", "as_diff", is_flag=True, help="Print the changes of --write as a diff.")
@click.option(
    "--to",
    "target",
    type=click.Choice(["drop-in", "native"]),
    default="drop-in",
    show_default=True,
    help="What replaces apex.amp: hpc_amp.amp (drop-in) or torch.amp (native). For native, the "
    "changes are explained but not written.",
)
@click.option(
    "--torch",
    metavar="VERSION",
    default="2.4",
    show_default=True,
    help="The oldest version of torch that the script must support.",
)
@click.option(
    "--ignore",
    "ignored",
    multiple=True,
    metavar="RULE",
    help="Do not report findings of RULE that need manual work. May be repeated.",
)
@json_option
def migrate(
    paths: tuple[Path, ...],
    write: bool,
    as_diff: bool,
    target: Target,
    torch: str,
    ignored: tuple[str, ...],
    as_json: bool,
) -> None:
    """Update scripts with apex.amp, torch.cuda.amp or manual fp16.

    FILE is a Python file, a notebook (reported but not changed) or a folder. Without --write, no
    file is changed. With --write, the mechanical changes are made, and the others are reported.

    The exit status is 0 if there is nothing to do, 1 if something is left to change or to check,
    and 2 if a file cannot be read or is not valid Python. docs/migrate.md explains all rules.
    """
    from hpc_amp.errors import UsageError
    from hpc_amp.finding import exit_status
    from hpc_amp.migrate.files import ScanOptions, python_files, require_libcst, scan_file
    from hpc_amp.migrate.rules import RULES

    if as_json and as_diff:
        raise click.UsageError("Give either --json or --diff.")
    for rule in ignored:
        if rule not in RULES:
            raise UsageError(f"there is no rule {rule!r}", hint="docs/migrate.md lists all rules")
    options = ScanOptions(target, _version(torch), ignored)
    require_libcst()
    scanned: list[Scanned] = []
    refused: list[str] = []

    def refuse(why: str) -> None:
        # Go on with the other files.
        refused.append(why)
        click.echo(f"hpc-amp: {why}", err=True)

    for path in python_files(paths, refuse):
        try:
            one = scan_file(path, options)
            scanned.append(one.write() if write else one)
            for why in one.refused:
                refuse(why)
        except UsageError as error:
            refuse(str(error))
        except Exception as error:
            # A defect of a rule. Earlier files may be changed already: report it and go on.
            refuse(_defect(path, error))
    _tell(scanned, write=write, as_diff=as_diff, as_json=as_json)
    if refused:
        raise SystemExit(2)
    to_do = [finding for one in scanned for finding in one.to_do]
    raise SystemExit(exit_status(to_do, strict=True))


def _version(text: str) -> tuple[int, int]:
    from hpc_amp.errors import UsageError

    major, _, minor = text.partition(".")
    minor = minor.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise UsageError(f"--torch {text} is not a version", hint="write it like 2.4")
    return int(major), int(minor)


def _defect(path: Path, error: Exception) -> str:
    """Describe an internal error of hpc-amp, with its place, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"{path} was not changed, because hpc-amp has a defect ({what}, in "
        f"{Path(last.filename).name}:{last.lineno}); please report this"
    )


def _tell(scanned: Sequence[Scanned], *, write: bool, as_diff: bool, as_json: bool) -> None:
    if as_json:
        findings = [finding for one in scanned for finding in one.findings]
        click.echo(json.dumps([finding.to_plain() for finding in findings], indent=1))
        return
    if as_diff:
        click.echo("".join(one.diff() for one in scanned), nl=False)
    else:
        for finding in (finding for one in scanned for finding in one.to_do):
            click.echo(str(finding))
    click.echo(_summary(scanned, write=write), err=as_diff)


def _summary(scanned: Sequence[Scanned], *, write: bool) -> str:
    """One line: how many places were found, and how many of them need manual work."""
    found = sum(len(one.findings) for one in scanned)
    left = sum(len(one.left) for one in scanned)
    if not found:
        return f"nothing found in {_count(len(scanned), 'file')}"
    files = sum(bool(one.findings) for one in scanned)
    notes = sum(len(one.notes) for one in scanned)
    mechanical = "changed" if write else "for --write"
    if notes:
        mechanical += f" ({notes} to look at)"
    return (
        f"{_count(found, 'place')} in {_count(files, 'file')}: {found - left} {mechanical}, "
        f"{left} for you"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
