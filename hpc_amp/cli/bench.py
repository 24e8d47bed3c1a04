"""`hpc-amp bench`: the same job in each precision, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import DefaultGroup, json_option, say_that_it_waits

if TYPE_CHECKING:
    from hpc_amp.bench.folder import Bench
    from hpc_amp.bench.points import PreparedBench
    from hpc_amp.bench.results import Result
    from hpc_amp.schedulers import Submission

benches_dir_option = click.option(
    "--benches-dir",
    type=click.Path(path_type=Path),
    default=Path("benches"),
    envvar="HPC_AMP_BENCHES",
    show_default=True,
    help="Folder of all benchmarks.",
)


@click.group(cls=DefaultGroup, no_args_is_help=False)
def bench() -> None:
    """Measure a job in each precision: `bench job.yaml`, then a table."""


@bench.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--precisions",
    metavar="LIST",
    help="Such as fp32,bf16. The first one is what the others are compared with. "
    "Default: all that the devices have.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--warmup", type=click.IntRange(min=0), default=20, show_default=True)
@click.option(
    "--submit",
    "submitted",
    is_flag=True,
    help="Hand one job with all runs to the scheduler, and do not wait.",
)
@json_option
@benches_dir_option
def start(
    config: Path,
    overrides: tuple[str, ...],
    precisions: str | None,
    repeats: int,
    steps: int,
    warmup: int,
    submitted: bool,
    as_json: bool,
    benches_dir: Path,
) -> None:
    """Run CONFIG in each precision here, one after the other, and show how they compare.

    Each of --repeats rounds has every precision once; a run measures --steps steps after --warmup
    others. Exits with 1 if a run could not be measured. docs/bench.md says how to read the table.
    """
    from hpc_amp.bench.points import prepare_bench, start_bench
    from hpc_amp.config.sites import HERE

    names = [name.strip() for name in precisions.split(",")] if precisions is not None else None
    if names is not None and not all(names):
        raise click.UsageError("--precisions wants names with commas between: fp32,bf16.")
    prepared = prepare_bench(
        config, overrides, benches_dir,
        precisions=names, repeats=repeats, warmup=warmup, steps=steps,
        site=None if submitted else HERE,
    )  # fmt: skip
    for remark in prepared.first.remarks:
        click.echo(f"note: {remark}", err=True)
    _go_on(prepared, start_bench(prepared), as_json)


def _go_on(prepared: PreparedBench, submission: Submission, as_json: bool) -> None:
    """Wait for runs on this machine; say where those that are queued will be found."""
    import json

    from hpc_amp.config.sites import HERE

    if submission.remarks:
        click.echo(submission.remarks, err=True)
    bench = prepared.bench
    if bench.site == HERE:
        _wait(prepared, submission.job_id, as_json)
    elif as_json:
        click.echo(json.dumps({"job_id": submission.job_id, "bench": str(bench.folder)}))
    else:
        click.echo(f"submitted job {submission.job_id}; then: hpc-amp bench report {bench.folder}")


def _wait(prepared: PreparedBench, job_id: str, as_json: bool) -> None:
    """Follow the runs to their end. Ctrl-C ends the one that is under way, and shows the others."""
    from hpc_amp.bench.follow import follow
    from hpc_amp.campaigns.words import count

    bench = prepared.bench
    click.echo(f"{count(len(prepared.plans), 'run')} in {bench.folder}", err=True)
    try:
        follow(bench, prepared.plans, _tell)
    except KeyboardInterrupt:
        click.echo("\nending the run that is under way", err=True)
        prepared.first.scheduler.cancel(job_id)
        _show(bench, as_json, None)
        raise SystemExit(130) from None
    if not _show(bench, as_json, None):
        raise SystemExit(1)


def _tell(result: Result) -> None:
    from hpc_amp.campaigns.words import milliseconds

    point = result.point
    said = f"{result.state}: {result.reason}" if result.reason else result.state
    if result.is_measured:
        said = f"{milliseconds(result.step_seconds)} ms a step"
    click.echo(f"{point.precision}, repeat {point.repeat}: {said}", err=True)


def _show(bench: Bench, as_json: bool, out: Path | None) -> bool:
    """Print a benchmark as far as it is measured, and write the report. Returns whether all of it
    is."""
    from hpc_amp.bench.comparison import compare
    from hpc_amp.bench.report import to_json, to_text, write_report
    from hpc_amp.bench.results import read_results

    comparison = compare(bench, read_results(bench))
    written = write_report(comparison, out or bench.folder / "report")
    click.echo(to_json(comparison) if as_json else to_text(comparison), nl=not as_json)
    click.echo(written.describe(), err=as_json)
    return not comparison.missing


@bench.command()
@click.argument("target", metavar="BENCH")
@json_option
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where table, JSON and picture go. Without it: `report` in the benchmark's folder.",
)
@benches_dir_option
def report(target: str, as_json: bool, out: Path | None, benches_dir: Path) -> None:
    """Show a benchmark as far as it is measured.

    BENCH is its folder, or a name: then its newest benchmark. Exits with 1 unless all of its runs
    are measured.
    """
    from hpc_amp.bench.folder import find_bench

    if not _show(find_bench(target, benches_dir), as_json, out):
        raise SystemExit(1)


@bench.command("continue")
@click.argument("target", metavar="BENCH")
@json_option
@benches_dir_option
def continue_bench(target: str, as_json: bool, benches_dir: Path) -> None:
    """Make the runs of BENCH that are not measured once more, as it was started.

    Runs of a command that was killed are looked for in the queue first.
    """
    import json

    from hpc_amp.bench.folder import find_bench
    from hpc_amp.bench.points import prepare_points, submit_bench
    from hpc_amp.bench.results import read_results, unfinished
    from hpc_amp.campaigns.lock import holding, refuse_elsewhere
    from hpc_amp.campaigns.unsettled import settle
    from hpc_amp.jobs.rundir import working_in

    found = find_bench(target, benches_dir)
    refuse_elsewhere(found.folder, found.run_dirs())
    with (
        holding(found.description, "runs"),
        working_in(found.made_in(), "the benchmark was started"),
    ):
        settle(found.run_dirs, say_that_it_waits)
        points = unfinished(found, read_results(found))
        if not points:
            click.echo(f"{found.folder}: all runs are measured", err=as_json)
            if as_json:
                click.echo(json.dumps({"job_id": None, "bench": str(found.folder)}))
            return
        prepared = prepare_points(found, points)
        submission = submit_bench(prepared)
    # Other commands may cancel it meanwhile.
    _go_on(prepared, submission, as_json)


@bench.command()
@click.argument("target", metavar="BENCH")
@json_option
@benches_dir_option
def status(target: str, as_json: bool, benches_dir: Path) -> None:
    """Show which runs of BENCH are measured, under way, or missing."""
    import json

    from hpc_amp.bench.folder import find_bench
    from hpc_amp.bench.report import describe, to_plain
    from hpc_amp.bench.results import read_results

    found = find_bench(target, benches_dir)
    results = read_results(found)
    shown = json.dumps(to_plain(found, results), indent=1) if as_json else describe(found, results)
    click.echo(shown)


@bench.command()
@click.argument("target", metavar="BENCH")
@json_option
@benches_dir_option
def cancel(target: str, as_json: bool, benches_dir: Path) -> None:
    """End all runs of BENCH that are queued or running. `bench continue` makes them again."""
    import json

    from hpc_amp.bench.folder import find_bench
    from hpc_amp.campaigns.ending import cancel_runs
    from hpc_amp.campaigns.lock import holding, refuse_elsewhere
    from hpc_amp.campaigns.unsettled import settle
    from hpc_amp.campaigns.words import count
    from hpc_amp.jobs.status import run_statuses

    found = find_bench(target, benches_dir)
    refuse_elsewhere(found.folder, found.run_dirs())
    with holding(found.description, "runs"):
        settle(found.run_dirs, say_that_it_waits)
        ended = cancel_runs(run_statuses(found.run_dirs()), by="hpc-amp bench cancel")
    if as_json:
        click.echo(json.dumps({"bench": str(found.folder), "cancelled": ended}))
    else:
        click.echo(f"cancelled {count(ended, 'run')} of {found.folder}")
