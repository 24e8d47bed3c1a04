"""The commands that take a job: `hpc-amp validate`, `config`, `render`, `submit` and `run`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.follow import (
    follow_until_interrupted,
    report_submission,
    say_remarks,
    wait_here,
)
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import FILE, json_option, no_check_option

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText
    from hpc_amp.jobs.plan import Plan

run_id_option = click.option(
    "--run-id", metavar="ID", help="Use this run id, for example 20261127-223455-kqzf."
)


@click.command(cls=JobCommand)
@functools.partial(takes_job, anywhere=False)
@json_option
def validate(config: Path | JobText, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a job file (CONFIG) without submitting it."""
    from hpc_amp.config.checks import find_data
    from hpc_amp.errors import ConfigError
    from hpc_amp.jobs.image_check import check_image
    from hpc_amp.jobs.possible import ANSWER_SECONDS
    from hpc_amp.jobs.render import render
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.schedulers.base import Client

    plan, loaded = prepare(config, overrides)
    render(plan)
    say_remarks(plan)
    data = list(find_data(plan.job.train))
    for found in data:
        if not found.usable and plan.scheduler.one_machine:
            raise loaded.error(found.key, found.text)
        if not found.usable:
            click.echo(f"note: on this machine, {found.key}: {found.text}", err=True)
    for finding in check_image(plan, Client(ANSWER_SECONDS)):
        if finding.severity == "error":
            raise ConfigError(finding.what, hint=finding.fix)
        click.echo(f"note: {finding.what}: {finding.why}", err=True)
    facts = {
        "config": str(config),
        "name": plan.job.name,
        "site": plan.site.name,
        "scheduler": plan.scheduler.name,
        "launcher": plan.launcher.name,
        "container": plan.job.container.image if plan.container.uses_image else None,
        "nodes": plan.job.resources.nodes,
        "world_size": plan.job.world_size,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    where = f"site {facts['site']}, {facts['scheduler']}, {facts['launcher']}"
    container = f"container {facts['container']}" if facts["container"] else "no container"
    click.echo(
        f"{config} is valid: {facts['name']}, {facts['world_size']} rank(s) on {facts['nodes']} "
        f"node(s), {where}, {container}"
    )
    for found in data:
        if found.usable:
            click.echo(f"{found.key}: {found.text}")


@click.command(cls=JobCommand)
@functools.partial(takes_job, anywhere=False)
@click.option("--origin", is_flag=True, help="Show where each value is from.")
def config(config: Path | JobText, overrides: tuple[str, ...], origin: bool) -> None:
    """Print all keys of a job (CONFIG) with their values.

    They are from the job file, the overrides, the site's file and the defaults. The output is a job
    file of the same job.
    """
    from hpc_amp.config.sites import load_for_site
    from hpc_amp.config.write import job_text

    loaded, _ = load_for_site(config, overrides)
    click.echo(job_text(loaded, origins=origin), nl=False)


@click.command(cls=JobCommand)
@takes_job
@click.option(
    "--create", is_flag=True, help="Create the run directory, so that you can submit the script."
)
@run_id_option
def render(
    config: Path | JobText, overrides: tuple[str, ...], create: bool, run_id: str | None
) -> None:
    """Print the launch script of a job file (CONFIG).

    \b
      hpc-amp render job.yaml
      hpc-amp render job.yaml --create > job.sh      then: sbatch job.sh

    The script needs its run directory, which `submit` and --create make.
    """
    if not create:
        _print_script(config, overrides, run_id)
        if not sys.stdout.isatty():
            click.echo(
                "note: to submit this script yourself, add --create: it needs its run directory",
                err=True,
            )
        return
    from hpc_amp.jobs.submit import create as create_run
    from hpc_amp.jobs.submit import prepare

    plan, loaded = prepare(config, overrides, run_id=run_id)
    say_remarks(plan)
    script = create_run(plan, loaded.text)
    click.echo(f"run directory {plan.run_dir}", err=True)
    click.echo(script.encode(), nl=False)


def _print_script(config: Path | JobText, overrides: tuple[str, ...], run_id: str | None) -> None:
    from hpc_amp.jobs.render import render as render_plan
    from hpc_amp.jobs.submit import prepare

    plan, _ = prepare(config, overrides, run_id=run_id)
    # As bytes: the output is the script byte for byte, whatever the terminal's encoding.
    click.echo(render_plan(plan).encode(), nl=False)


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
    if dry_run:
        _print_script(config, overrides, run_id)
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


@click.command(cls=JobCommand)
@takes_job
def run(config: Path | JobText, overrides: tuple[str, ...]) -> None:
    """Run a job file (CONFIG) on this machine and wait for it.

    Ctrl-C, SIGTERM and a closed terminal save a checkpoint and stop the job. After `nohup`, a
    closed terminal does not.
    """
    from hpc_amp.config.sites import HERE
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.jobs.submit import submit as submit_plan

    plan, loaded = prepare(config, overrides, site=HERE)
    say_remarks(plan)
    submission = submit_plan(plan, loaded.text)
    report_submission(submission, plan.run_dir, plan.scheduler.name, as_json=False)
    wait_here(plan)
