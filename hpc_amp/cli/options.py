"""What several commands have in common."""

from __future__ import annotations

from pathlib import Path

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    envvar="HPC_AMP_RUNS",
    show_default=True,
    help="Folder of all runs.",
)


class DefaultGroup(click.Group):
    """A group in which words that are none of its commands are the arguments of the command that is
    named `default`, where it has that one: `scale job.yaml` beside `scale report my_study`."""

    default = "start"
    # They may be the default command's: `scale --dry-run job.yaml`.
    ignore_unknown_options = True

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words ask for, its name, and its arguments."""
        default = self.get_command(ctx, self.default)
        if default is not None and self.get_command(ctx, args[0]) is None:
            return self.default, default, args
        return super().resolve_command(ctx, args)
