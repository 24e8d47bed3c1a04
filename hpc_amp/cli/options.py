"""Options that several commands have."""

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
