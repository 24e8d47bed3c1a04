"""Options and classes that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

FILE = click.Path(path_type=Path)
"""The type of a path. It is made once, because each one looks up translations in files."""

overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
no_check_option = click.option(
    "--no-check",
    is_flag=True,
    help="Submit without checking the limits of the queue, the program, the names of networks and "
    "the image.",
)
runs_dir_option = click.option(
    "--runs-dir",
    type=FILE,
    default=Path("runs"),
    envvar="HPC_AMP_RUNS",
    show_default=True,
    help="Folder that contains the runs.",
)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of runs that begin with `incomplete`, for the shell's completion."""
    folder = ctx.params.get("runs_dir") or Path(os.environ.get("HPC_AMP_RUNS", "runs"))
    try:
        names = [one.name for one in folder.iterdir() if not one.name.startswith(".")]
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def refuse_json_of_scripts(dry_run: bool, as_json: bool) -> None:
    """Raise UsageError for both: scripts are printed as they are."""
    if dry_run and as_json:
        raise click.UsageError("--dry-run prints scripts, which are not JSON: leave out --json.")


def refuse_misspelt(word: str, commands: Sequence[str], ctx: click.Context) -> None:
    """Raise UsageError if `word` is nearly one of the commands."""
    from difflib import get_close_matches  # only for the error

    for near in get_close_matches(word.lower(), commands, 1, 0.75):
        raise click.UsageError(f"No such command '{word}'. Did you mean '{near}'?", ctx)


class DefaultGroup(click.Group):
    """A group of commands with a default command.

    If the first argument is not the name of a command, all arguments go to the command named by
    `default`. So `scale job.yaml` means `scale start job.yaml`, and `scale report my_study` still
    calls `report`.
    """

    default = "start"
    # Options of the default command may come first: `scale --dry-run job.yaml`.
    ignore_unknown_options = True

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the command to call, the command, and its arguments. Raises UsageError
        for a word that is no file, but nearly a command."""
        default = self.get_command(ctx, self.default)
        if default is not None and self.get_command(ctx, args[0]) is None:
            if not os.path.lexists(args[0]):
                refuse_misspelt(args[0], self.list_commands(ctx), ctx)
            return self.default, default, args
        return super().resolve_command(ctx, args)
