"""`hpc-amp scale`: how a job scales over nodes."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_amp.cli.options import json_option

studies_dir_option = click.option(
    "--studies-dir",
    type=click.Path(path_type=Path),
    default=Path("studies"),
    envvar="HPC_AMP_STUDIES",
    show_default=True,
    help="Folder of all studies.",
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


@click.group(cls=DefaultGroup)
def scale() -> None:
    """Measure how a job scales over nodes, and show it."""


@scale.command()
@click.argument("study")
@click.option(
    "--compare", "other", metavar="OTHER", help="A second study in the same pictures and tables."
)
@click.option("--latex", "as_latex", is_flag=True, help="Print the table for a proposal, in LaTeX.")
@json_option
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the points to FILE, too.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where table, CSV, JSON, pictures and page go. Without it: `report` in the study.",
)
@studies_dir_option
def report(
    study: str,
    other: str | None,
    as_latex: bool,
    as_json: bool,
    csv_file: Path | None,
    out: Path | None,
    studies_dir: Path,
) -> None:
    """Show speedup and efficiency of a study, as far as it is measured.

    STUDY and OTHER are a study's folder, or a name: then its newest study. With --latex or --json
    only that is printed, and no files are written unless --out names a folder. docs/scaling.md says
    how to read it.
    """
    from hpc_amp.errors import UsageError
    from hpc_amp.study.analysis import analyse
    from hpc_amp.study.folder import find_study

    if as_latex and as_json:
        raise click.UsageError("Give either --latex or --json.")
    studies = [find_study(name, studies_dir) for name in (study, other) if name is not None]
    if len(studies) == 2 and studies[0].folder == studies[1].folder:
        raise UsageError(f"{other!r} is the study {study!r} itself", hint="--compare another one")
    analyses = [analyse(one) for one in studies]

    from hpc_amp.study.export import to_csv, to_json
    from hpc_amp.study.latex import to_latex
    from hpc_amp.study.output import write_file, write_report
    from hpc_amp.study.text import to_text

    if as_latex:
        click.echo("\n".join(to_latex(one) for one in analyses), nl=False)
    elif as_json:
        click.echo(to_json(analyses), nl=False)
    else:
        click.echo(to_text(analyses))
    if csv_file is not None:
        write_file(csv_file, to_csv(analyses).encode())
    if out is None and (as_latex or as_json):
        return
    written = write_report(analyses, out or studies[0].folder / "report")
    click.echo(written.describe(), err=as_latex or as_json)
