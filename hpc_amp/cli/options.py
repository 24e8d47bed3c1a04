"""Options and classes that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from hpc_amp.registry import load

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
no_check_option = click.option(
    "--no-check",
    is_flag=True,
    help="Submit without checking the limits of the queue, the program, the names of networks and "
    "the image.",
)
runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    envvar="HPC_AMP_RUNS",
    show_default=True,
    help="Folder that contains the runs.",
)


_SECTIONS = {
    "A job": ("init", "validate", "config", "render", "submit", "run"),
    "Runs": (
        "status",
        "logs",
        "wait",
        "compare",
        "explain",
        "export",
        "cancel",
        "resume",
        "shell",
        "generate",
        "rm",
        "prune",
    ),
    "Many runs": ("sweep", "scale", "bench"),
    "Machines and images": ("doctor", "site", "container"),
    "Scripts of your own": ("lint", "migrate"),
    "This program": ("docs", "completion"),
}


ENVIRONMENT = {
    "HPC_AMP_RUNS": "The default of --runs-dir. Also HPC_AMP_SWEEPS, HPC_AMP_STUDIES and "
    "HPC_AMP_BENCHES.",
    "HPC_AMP_SITES": "A folder with site files, searched before ~/.config/hpc-amp/sites.",
}
"""The environment variables that the commands read, with their meanings."""

# What people type by the habit of other programs, and the command that does it here.
_MEANT = {
    "cat": "logs RUN",
    "clean": "prune, or hpc-amp rm RUN",
    "delete": "rm RUN, or hpc-amp cancel RUN",
    "del": "rm RUN, or hpc-amp cancel RUN",
    "diff": "compare RUN RUN",
    "info": "status RUN",
    "jobs": "status",
    "kill": "cancel RUN",
    "list": "status",
    "ls": "status",
    "new": "init",
    "output": "logs RUN",
    "ps": "status",
    "queue": "status",
    "remove": "rm RUN",
    "rerun": "submit RUN, or hpc-amp resume RUN",
    "restart": "resume RUN",
    "retry": "resume RUN",
    "runs": "status",
    "scancel": "cancel RUN",
    "show": "status RUN",
    "sites": "site list",
    "squeue": "status",
    "start": "submit",
    "stop": "cancel RUN, or hpc-amp cancel --save RUN",
    "tail": "logs --follow RUN",
    "train": "run, or hpc-amp submit",
    "view": "status RUN",
    "watch": "status --watch",
}


class SectionGroup(click.Group):
    """A group whose help shows its commands in sections.

    `elsewhere` has the commands that are imported when they are called: their places
    (`package.module:NAME`) and the texts that the help shows, by name.
    """

    def __init__(self, *, elsewhere: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*self.commands, *self.elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported if it is in another module; None if there is none."""
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        command: click.Command = load(self.elsewhere[cmd_name][0])
        return command

    def summary(self, name: str) -> str:
        """What the help says of a command. Imports nothing."""
        if name in self.elsewhere:
            return self.elsewhere[name][1]
        return self.commands[name].get_short_help_str(limit=80)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError; for a word of `_MEANT`, with the command."""
        meant = _MEANT.get(args[0])
        if meant is not None and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"No such command '{args[0]}'. Try: hpc-amp {meant}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, in the order in which one uses its commands."""
        for title, names in self.sections(ctx):
            with formatter.section(title):
                rows = [(name, self.summary(name)) for name in names]
                formatter.write_dl(rows, col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the environment variables."""
        with formatter.section("Environment variables"):
            formatter.write_dl(list(ENVIRONMENT.items()), col_max=18)

    def sections(self, ctx: click.Context) -> Iterator[tuple[str, list[str]]]:
        """Yield each section of the help: its title, and the names of its commands."""
        known = self.list_commands(ctx)
        shown = {name for names in _SECTIONS.values() for name in names}
        further = tuple(name for name in known if name not in shown)
        for title, names in {**_SECTIONS, "Further": further}.items():
            found = [name for name in names if name in known]
            if found:
                yield title, found


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of runs that begin with `incomplete`, for the shell's completion."""
    folder = ctx.params.get("runs_dir") or Path(os.environ.get("HPC_AMP_RUNS", "runs"))
    try:
        names = [one.name for one in folder.iterdir() if not one.name.startswith(".")]
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


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
        """Return the name of the command to call, the command, and its arguments."""
        default = self.get_command(ctx, self.default)
        if default is not None and self.get_command(ctx, args[0]) is None:
            return self.default, default, args
        return super().resolve_command(ctx, args)
