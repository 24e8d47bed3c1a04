"""`hpc-amp bench`: measure the speed of a job with several settings."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.campaigns import (
    Limits,
    add_verbs,
    chosen_campaign,
    cost_options,
    expected_reports,
    limit_options,
    newest_argument,
    parent_option,
    points_option,
    start_campaign,
    warmup_option,
)
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import (
    DefaultGroup,
    json_option,
    no_check_option,
    refuse_json_of_scripts,
)

if TYPE_CHECKING:
    from hpc_amp.bench.view import BenchView
    from hpc_amp.config.load import JobText


@click.group(cls=DefaultGroup, no_args_is_help=False)
def bench() -> None:
    """Measure the speed of a job with several settings.

    \b
      hpc-amp bench job.yaml                             all precisions
      hpc-amp bench job.yaml --precisions fp32,bf16 train.batch_size=32,64
      hpc-amp bench train.py -- --precision=fp32,bf16    your own program
      hpc-amp bench report NAME                          print the table again
    """


def _view() -> BenchView:
    from hpc_amp.bench.view import BENCH

    return BENCH


@bench.command(cls=JobCommand)
@functools.partial(takes_job, varies=True, anywhere=False)
@click.option(
    "--precisions",
    metavar="LIST",
    help="Precisions to measure, such as fp32,bf16. The others are compared with the first one. "
    "Default: all that the devices have, unless train.precision is given.",
)
@points_option
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="Runs of each setting.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps to measure.  [default: 100; of your own program, all]",
)
@warmup_option
@click.option(
    "--submit",
    "submitted",
    is_flag=True,
    help="Submit one job with all runs, and do not wait.",
)
@limit_options(*cost_options)
@click.option(
    "--dry-run", is_flag=True, help="Print the settings and the script, and submit nothing."
)
@no_check_option
@json_option
@parent_option("benches")
def start(
    config: Path | JobText,
    overrides: tuple[str, ...],
    precisions: str | None,
    table: Path | None,
    repeats: int,
    steps: int | None,
    warmup: int,
    submitted: bool,
    dry_run: bool,
    as_json: bool,
    parent: Path,
    **limits: Any,
) -> None:
    """Run CONFIG in each precision on this machine, and compare the times.

    CONFIG is a job file, or your own program, whose arguments after -- may have several values.
    A program is measured with these values, and not in each precision. A key with several values
    varies too: train.batch_size=32,64 measures each precision with both batches. The runs follow
    one another, each setting once, and then all again for each further repeat. The exit status is 1
    if a run could not be measured. docs/bench.md explains the table.
    """
    refuse_json_of_scripts(dry_run, as_json)
    from hpc_amp.bench.plan import BenchOptions, plan_bench
    from hpc_amp.campaigns.measuring import USUAL_STEPS
    from hpc_amp.campaigns.submit import describe

    if not (submitted or dry_run or limits["yes"]):
        _ask_on_login_node(config, overrides, table)
    names = [name.strip() for name in precisions.split(",")] if precisions is not None else None
    if names is not None and not all(names):
        raise click.UsageError("--precisions needs names separated by commas: fp32,bf16.")
    options = BenchOptions(
        precisions=names,
        table=table,
        repeats=repeats,
        warmup=warmup,
        steps=steps,
        here=not submitted,
    )
    plan = plan_bench(config, overrides, parent, options)
    own = plan.plan.job.run is not None
    facts = {
        "warmup": warmup,
        "steps": steps if own else steps or USUAL_STEPS,
        "own_program": own,
    }
    campaign = describe(_view(), plan, submitting="one job", options=facts)
    if not dry_run:
        for remark in (*plan.remarks, *expected_reports(plan)):
            click.echo(f"note: {remark}", err=True)
    start_campaign(_view(), plan, campaign, Limits(**limits), as_json=as_json, dry_run=dry_run)


def _ask_on_login_node(
    config: Path | JobText, overrides: tuple[str, ...], table: Path | None
) -> None:
    """Ask before a login node is measured. Raises UsageError if no terminal can answer."""
    from hpc_amp.bench.plan import busy_site

    site = busy_site(config, overrides, table)
    if site is None:
        return
    here = f"this machine submits jobs to {site.scheduler}, so it is probably a login node"
    if not sys.stdin.isatty():
        from hpc_amp.errors import UsageError

        raise UsageError(here, hint="measure in a job with --submit, or here with --yes")
    if not click.confirm(f"{here}. Measure here, without --submit?", err=True):
        raise SystemExit(1)


add_verbs(bench, _view, "benchmark", "benches", cost_options)


@bench.command()
@newest_argument("benchmark")
@json_option
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for text, JSON and picture. Default: `report` in the benchmark.",
)
@parent_option("benches")
def report(target: str | None, as_json: bool, out: Path | None, parent: Path) -> None:
    """Show the measurements of a benchmark.

    BENCHMARK is the folder of a benchmark, or the name of a job, whose newest benchmark is meant.
    Default: the newest benchmark.
    The exit status is 1 if runs are missing.
    """
    from hpc_amp.bench.comparison import compare
    from hpc_amp.bench.report import to_json, to_text, write_report

    view = _view()
    campaign = chosen_campaign(view, target, parent)
    comparison = compare(campaign, view.statuses(campaign))
    click.echo(to_json(comparison) if as_json else to_text(comparison), nl=not as_json)
    written = write_report(comparison, out or campaign.folder / "report")
    click.echo(written.describe(), err=as_json)
    if comparison.missing:
        raise SystemExit(1)
