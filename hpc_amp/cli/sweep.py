"""`hpc-amp sweep`: run a job file with many settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.campaigns import (
    Limits,
    add_verbs,
    chosen_campaign,
    cost_options,
    in_allocation_option,
    limit_options,
    max_parallel_option,
    newest_argument,
    parent_option,
    points_option,
    start_campaign,
)
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import (
    DefaultGroup,
    json_option,
    no_check_option,
    refuse_json_of_scripts,
)

if TYPE_CHECKING:
    from hpc_amp.campaigns.folder import Submitting
    from hpc_amp.campaigns.view import View
    from hpc_amp.config.load import JobText


@click.group(cls=DefaultGroup, no_args_is_help=False)
def sweep() -> None:
    """Run a job file with many settings, and rank the results.

    \b
      hpc-amp sweep job.yaml train.optimizer.lr=0.1,0.2 train.precision.mode=fp16,bf16
      hpc-amp sweep train.py --gpus 4 -- --lr=0.1,0.2 --wd=0,0.01
      hpc-amp sweep status NAME       show the state of each point
      hpc-amp sweep report NAME       rank the points, and draw a picture
      hpc-amp sweep continue NAME     submit points that are missing or have failed

    Each setting is a point, and each point is an ordinary run with checkpoints and restarts. If the
    scheduler has job arrays, all points are one array. See docs/sweeps.md.
    """


def _view() -> View:
    from hpc_amp.sweep.view import SWEEP

    return SWEEP


@sweep.command(cls=JobCommand)
@functools.partial(takes_job, varies=True, anywhere=False)
@click.option(
    "--zip",
    "zipped",
    is_flag=True,
    help="Combine the first values of all keys, then the second ones, instead of a grid.",
)
@points_option
@click.option(
    "--repeats",
    type=click.IntRange(min=2),
    metavar="N",
    help="Run every point with N seeds, counted from train.seed. The report has 95 % intervals.",
)
@in_allocation_option
@limit_options(max_parallel_option, *cost_options)
@click.option(
    "--dry-run", is_flag=True, help="Print the points and the scripts, and submit nothing."
)
@no_check_option
@json_option
@parent_option("sweeps")
def start(
    config: Path | JobText,
    overrides: tuple[str, ...],
    zipped: bool,
    table: Path | None,
    repeats: int | None,
    in_allocation: bool,
    dry_run: bool,
    as_json: bool,
    parent: Path,
    **limits: Any,
) -> None:
    """Submit CONFIG with every combination of values, or run it on this machine.

    A key with several values varies: train.optimizer.lr=0.1,0.2 train.seed=0,1,2 makes six points.
    A comma in brackets or quotes does not separate values. --repeats 3 runs each point with three
    seeds, also if nothing else varies.
    """
    refuse_json_of_scripts(dry_run, as_json)
    from hpc_amp.campaigns.plan import plan_campaign, with_repeats
    from hpc_amp.campaigns.points import read_space
    from hpc_amp.campaigns.submit import describe
    from hpc_amp.config.load import read_job

    space = read_space(overrides, zipped=zipped, table=table, must_vary=repeats is None)
    source = read_job(config, space.fixed)
    if repeats is not None:
        space = with_repeats(source, space, repeats)
    plan = plan_campaign(source, space, parent)
    submitting: Submitting = "one job" if in_allocation else "arrays"
    bounds = Limits(**limits)
    campaign = describe(_view(), plan, submitting=submitting, at_once=bounds.max_parallel)
    if not dry_run:
        for remark in plan.remarks:
            click.echo(f"note: {remark}", err=True)
    start_campaign(_view(), plan, campaign, bounds, as_json=as_json, dry_run=dry_run)


add_verbs(sweep, _view, "sweep", "sweeps")


@sweep.command()
@newest_argument("sweep")
@click.option("--metric", help="The metric to rank by. Default: the best metric of the task.")
@click.option(
    "--highest/--lowest",
    "highest_first",
    default=None,
    help="Whether the highest or the lowest value is best.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show only the best N.")
@json_option
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all points to FILE.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for text, CSV, JSON and picture. Default: `report` in the sweep.",
)
@parent_option("sweeps")
def report(
    target: str | None,
    metric: str | None,
    highest_first: bool | None,
    top: int | None,
    as_json: bool,
    csv_file: Path | None,
    out: Path | None,
    parent: Path,
) -> None:
    """Rank the finished points of a sweep.

    SWEEP is the folder of a sweep, or the name of a job, whose newest sweep is meant. Default: the
    newest sweep. A metric is a number in `summary.json`, or the newest value in `metrics.jsonl`.
    The task says whether its best metric should be high or low. For other metrics, lower losses,
    errors and times are better, and higher values of all else; --highest and --lowest change this.
    With --json, files are only written if --out is given.
    """
    from hpc_amp.campaigns.output import write_file
    from hpc_amp.sweep.ranking import rank
    from hpc_amp.sweep.report import to_csv, to_json, to_text, write_report

    found = chosen_campaign(_view(), target, parent)
    ranking = rank(found, _view().statuses(found), metric, highest_first)
    if as_json:
        click.echo(to_json(ranking), nl=False)
    else:
        click.echo(to_text(ranking, top))
    if csv_file is not None:
        write_file(csv_file, to_csv(ranking).encode())
    if as_json and out is None:
        return
    written = write_report(ranking, out or found.folder / "report")
    click.echo(written.describe(), err=as_json)
