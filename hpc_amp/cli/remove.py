"""`hpc-amp rm` and `hpc-amp prune`: remove runs that have ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import complete_runs, runs_dir_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_amp.jobs.removal import Removable

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@_yes_option
@runs_dir_option
def rm(targets: tuple[str, ...], yes: bool, runs_dir: Path) -> None:
    """Remove runs with all their files, and symbolic links to them. Runs that have not ended are
    refused.

    Links are searched in --runs-dir and among RUN. With --yes, so are names: runs of other folders
    are given as paths.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.removal import removable

    place = runs_dir.absolute() if yes else runs_dir  # the default stands for all known folders
    found = dict.fromkeys(rundir.find_run(target, place) for target in targets)
    _remove(removable(list(found)), yes, runs_dir, targets)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_runs)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the newest N runs of each name.",
)
@click.option(
    "--older",
    metavar="TIME",
    help="Only runs that last changed at least this long ago, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and stop.")
@_yes_option
@runs_dir_option
def prune(
    names: tuple[str, ...], keep: int, older: str | None, dry_run: bool, yes: bool, runs_dir: Path
) -> None:
    """Remove old runs that have ended. With NAME, only runs of these jobs.

    Runs that wait or run, those of sweeps, studies and benchmarks, those whose checkpoints another
    run starts from, and those of other users stay as they are. Copies of the package that no run
    uses are removed too.
    """
    from hpc_amp.config.units import parse_duration
    from hpc_amp.jobs.removal import old_runs, remove_remains
    from hpc_amp.jobs.shared_code import remove_unused

    try:
        seconds = parse_duration(older) if older is not None else 0
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older") from None
    found = old_runs(runs_dir, keep=keep, older_than=seconds, names=names)
    if dry_run:
        click.echo(_listed(found) if found else "there is nothing to remove")
        return
    if found:
        _remove(found, yes, runs_dir)
    remove_remains(runs_dir)
    copies = remove_unused([runs_dir])
    if copies:
        click.echo(f"removed {copies} cop{'ies' if copies > 1 else 'y'} of the package")
    elif not found:
        click.echo("there is nothing to remove")


def _remove(
    runs: Sequence[Removable], yes: bool, runs_dir: Path, targets: Sequence[str] = ()
) -> None:
    from hpc_amp.errors import UsageError
    from hpc_amp.jobs.removal import remove

    click.echo(_listed(runs), err=True)
    if not yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for confirmation", hint="give --yes")
    if not yes and not click.confirm("Remove?", err=True):
        click.echo("nothing was removed", err=True)
        raise SystemExit(1)
    kept = remove(runs, runs_dir, list(map(Path, targets)))
    removed = len(runs) - len(kept)
    click.echo(f"removed {removed} run{'s' * (removed != 1)}")
    for run in kept:
        click.echo(f"note: {run.run_dir} has changed meanwhile, and is kept", err=True)
    if kept and targets:
        raise SystemExit(1)


def _listed(runs: Sequence[Removable]) -> str:
    from hpc_amp.cli.overview import size_in_words

    lines = [f"{size_in_words(run.size):>9}  {run.state:<12}  {run.run_dir}" for run in runs]
    return "\n".join([*lines, f"{size_in_words(sum(run.size for run in runs)):>9}  in all"])
