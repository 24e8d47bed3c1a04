"""`hpc-amp submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.follow import follow_until_interrupted, report_submission, say_remarks
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import FILE, json_option, no_check_option, refuse_json_of_scripts

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText
    from hpc_amp.jobs.plan import Plan

run_id_option = click.option(
    "--run-id", metavar="ID", help="Use this run id, for example 20261127-223455-kqzf."
)


@click.command(cls=JobCommand)
@takes_job
@click.option("--dry-run", is_flag=True, help="Print the launch script and submit nothing.")
@click.option("--follow", is_flag=True, help="Print the log until the run ends, then a summary.")
@click.option(
    "--save",
    type=FILE,
    metavar="FILE",
    help="Write the job file to FILE too.",
)
@no_check_option
@json_option
@run_id_option
def submit(
    config: Path | JobText,
    overrides: tuple[str, ...],
    dry_run: bool,
    follow: bool,
    save: Path | None,
    no_check: bool,
    as_json: bool,
    run_id: str | None,
) -> None:
    """Submit a job (CONFIG); print its id and run directory.

    \b
      hpc-amp submit job.yaml job.nodes=4 train.optimizer.lr=0.2
      hpc-amp submit train.py -N 2 --gpus 4 --image pytorch.sif -t 1h -- --lr 0.1
      hpc-amp submit runs/cifar/latest train.seed=2

    The last one runs a run's job again, as a new run with the same settings and the same code.
    KEY=VALUE replaces a value of the job file. Words after -- are arguments of the program.
    """
    refuse_json_of_scripts(dry_run, as_json)
    if dry_run:
        print_script(config, overrides, run_id)
        _save_job(save, config, overrides)
        return
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.jobs.submit import submit as submit_plan

    plan, loaded = prepare(config, overrides, run_id=run_id)
    say_remarks(plan)
    if not no_check:
        _refuse_impossible(plan)
    _save_job(save, config, overrides)
    submit_plan(
        plan,
        loaded.text,
        tell=lambda submission: report_submission(
            submission, plan.run_dir, plan.scheduler.name, as_json=as_json
        ),
    )
    if follow:
        follow_until_interrupted(plan.run_dir, as_json=as_json)


def _save_job(path: Path | None, config: Path | JobText, overrides: tuple[str, ...]) -> None:
    """Write a job that was found to be valid as a job file, if that is wanted."""
    if path is None:
        return
    from hpc_amp.cli.init import write_new
    from hpc_amp.config.load import read_job
    from hpc_amp.config.write import tree_text
    from hpc_amp.errors import UsageError

    if not isinstance(config, Path) and config.folder not in (None, Path.cwd()):
        raise UsageError(f"the paths in {config} start in {config.folder}: change to that folder")
    write_new(path, tree_text(read_job(config, overrides).tree))


def _refuse_impossible(plan: Plan) -> None:
    """Raise ConfigError for a job that can never run. Prints warnings."""
    from hpc_amp.jobs.possible import ANSWER_SECONDS, refuse_impossible
    from hpc_amp.schedulers.base import Client

    for warning in refuse_impossible(plan, Client(ANSWER_SECONDS)):
        click.echo(f"note: {warning}", err=True)


def print_script(config: Path | JobText, overrides: tuple[str, ...], run_id: str | None) -> None:
    """Print the launch script of a job."""
    from hpc_amp.jobs.render import render as render_plan
    from hpc_amp.jobs.submit import prepare

    plan, _ = prepare(config, overrides, run_id=run_id)
    # As bytes: the output is the script byte for byte, whatever the terminal's encoding.
    click.echo(render_plan(plan).encode(), nl=False)
