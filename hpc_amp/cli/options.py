"""Options and classes that several commands share."""

from __future__ import annotations

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
