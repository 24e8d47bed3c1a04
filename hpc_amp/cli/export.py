"""`hpc-amp export`: send the curves of runs to a tracker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpc_amp.cli.options import complete_runs, json_option, runs_dir_option
from hpc_amp.trackers.registry import EXPORTS


def _tracker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for each tracker that can be exported to."""
    for name in reversed(EXPORTS):
        flag = click.option(f"--{name}", name, is_flag=True, help=f"Send the curves to {name}.")
        command = flag(command)
    return command


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_runs)
@_tracker_options
@runs_dir_option
@json_option
def export(targets: tuple[str, ...], runs_dir: Path, as_json: bool, **chosen: bool) -> None:
    """Send the curves of runs to a tracker.

    \b
      hpc-amp export runs/cifar/latest --wandb
      hpc-amp export sweeps/lr --mlflow            all points of a sweep

    What has been sent before, by this command or by the run itself, is not sent again. So the
    command can be repeated while a run goes on, and after it was interrupted. The variables of the
    tracker (WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, ...) say where to.
    """
    from hpc_amp.campaigns.found import runs_of
    from hpc_amp.jobs.export import export as export_run

    names = [name for name in EXPORTS if chosen[name]]
    if not names:
        raise click.UsageError(f"Give {' or '.join(f'--{name}' for name in EXPORTS)}.")
    folders = dict.fromkeys(folder for one in targets for folder in runs_of(one, runs_dir))
    for folder in folders:
        for name in names:
            sent = export_run(folder, name)
            if as_json:
                facts = {"run_dir": str(folder), "tracker": name, "points": sent.points}
                click.echo(json.dumps({**facts, "where": sent.where}))
            else:
                click.echo(f"{folder}: {sent.points} new points to {sent.where}")
