"""Options and classes that several commands share."""

from __future__ import annotations

import os
from pathlib import Path

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
    "This program": ("completion",),
}


class SectionGroup(click.Group):
    """A group whose help shows its commands in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, in the order in which one uses its commands."""
        shown = {name for names in _SECTIONS.values() for name in names}
        further = tuple(name for name in self.list_commands(ctx) if name not in shown)
        for title, names in {**_SECTIONS, "Further": further}.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None:
                    rows.append((name, command.get_short_help_str(limit=80)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=12)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of runs that begin with `incomplete`, for the shell's completion."""
    folder = ctx.params.get("runs_dir") or Path(os.environ.get("HPC_AMP_RUNS", "runs"))
    try:
        return sorted(one.name for one in folder.iterdir() if one.name.startswith(incomplete))
    except OSError:
        return []


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
