"""`hpc-amp validate`, `config`, `render` and `run`."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.follow import say_remarks, wait_here
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import json_option
from hpc_amp.cli.submit import print_script, run_id_option

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText


@click.command(cls=JobCommand)
@functools.partial(takes_job, anywhere=False)
@json_option
def validate(config: Path | JobText, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a job file (CONFIG) without submitting it."""
    from hpc_amp.config.checks import find_data
    from hpc_amp.errors import ConfigError
    from hpc_amp.jobs.image_check import check_image
    from hpc_amp.jobs.possible import ANSWER_SECONDS, check_names, check_program
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
    for finding in (
        *check_names(plan.job),
        *check_program(plan.job, plan.site, plan.submitted_from),
        *check_image(plan, Client(ANSWER_SECONDS)),
    ):
        if finding.severity == "error":
            raise ConfigError(finding.what, hint=finding.fix)
        if finding.severity != "good":
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
        print_script(config, overrides, run_id)
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
    wait_here(plan, submit_plan(plan, loaded.text))
