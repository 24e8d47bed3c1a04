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

    Links are searched in --runs-dir and among RUN.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.removal import removable

    found = dict.fromkeys(rundir.find_run(target, runs_dir) for target in targets)
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

    Runs that are pending or running, and runs of sweeps, studies and benchmarks, are not removed.
    """
    from hpc_amp.config.units import parse_duration
    from hpc_amp.jobs.removal import old_runs

    try:
        seconds = parse_duration(older) if older is not None else 0
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older") from None
    found = old_runs(runs_dir, keep=keep, older_than=seconds, names=names)
    if not found:
        click.echo("there is nothing to remove")
    elif dry_run:
        click.echo(_listed(found))
    else:
        _remove(found, yes, runs_dir)


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
    remove(runs, runs_dir, list(map(Path, targets)))
    click.echo(f"removed {len(runs)} run{'s' * (len(runs) != 1)}")


def _listed(runs: Sequence[Removable]) -> str:
    lines = [f"{_size(run.size):>9}  {run.state:<12}  {run.run_dir}" for run in runs]
    return "\n".join([*lines, f"{_size(sum(run.size for run in runs)):>9}  in all"])


def _size(size: int) -> str:
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
