"""`hpc-amp sweep`: one job file at many points."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.options import DefaultGroup, json_option, say_that_it_waits

if TYPE_CHECKING:
    from hpc_amp.sweep.cut import ArrayPart
    from hpc_amp.sweep.folder import Sweep
    from hpc_amp.sweep.plan import SweepPlan
    from hpc_amp.sweep.status import PointStatus

sweeps_dir_option = click.option(
    "--sweeps-dir",
    type=click.Path(path_type=Path),
    default=Path("sweeps"),
    envvar="HPC_AMP_SWEEPS",
    show_default=True,
    help="Folder of all sweeps.",
)
max_parallel_option = click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most points that run at once. Without it: as many as the scheduler lets, or, on "
    "this machine, as its GPUs or cores allow.",
)


@click.group(cls=DefaultGroup, no_args_is_help=False)
def sweep() -> None:
    """Run a job file at many points, and rank what comes out.

    \b
      hpc-amp sweep job.yaml train.optimizer.lr=0.1,0.2 train.precision.mode=fp16,bf16
      hpc-amp sweep status NAME       where its points stand
      hpc-amp sweep report NAME       the points, best first, and a picture
      hpc-amp sweep continue NAME     the points that are missing or have failed

    Each point is an ordinary run, with checkpoints and restarts; all together are one job array
    where the scheduler has arrays. docs/sweeps.md says more.
    """


@sweep.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE[,VALUE]...]...")
@click.option(
    "--zip", "zipped", is_flag=True, help="Take the values of all keys one by one, not as a grid."
)
@click.option(
    "--points",
    "table",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="CSV file with keys as titles and a point a line.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=2),
    metavar="N",
    help="Run every point with N seeds, from train.seed on; the report has 95 % intervals.",
)
@max_parallel_option
@click.option("--dry-run", is_flag=True, help="Print points and scripts, and stop.")
@sweeps_dir_option
@json_option
def start(
    config: Path,
    overrides: tuple[str, ...],
    zipped: bool,
    table: Path | None,
    repeats: int | None,
    max_parallel: int | None,
    dry_run: bool,
    sweeps_dir: Path,
    as_json: bool,
) -> None:
    """Submit CONFIG at every point; on this machine, run it there.

    A key with several values varies: job.yaml train.optimizer.lr=0.1,0.2 train.seed=0,1,2 makes six
    points. A comma in brackets or quotes separates nothing. --repeats 3 runs each point with three
    seeds, and with nothing else that varies, the job as it is.
    """
    from hpc_amp.sweep.plan import plan_sweep, seeds_of_repeats
    from hpc_amp.sweep.points import read_space
    from hpc_amp.sweep.submit import describe, parts_of, write

    seeds = seeds_of_repeats(config, overrides, repeats) if repeats is not None else ()
    space = read_space(overrides, zipped=zipped, table=table, seeds=seeds)
    plan = plan_sweep(config, space, sweeps_dir)
    described = describe(plan, max_parallel)
    everything = range(len(described.points))
    parts = parts_of(described, everything, _at_once(described))
    if dry_run:
        _print_plan(plan, described, parts)
        return
    for remark in plan.remarks:
        click.echo(f"note: {remark}", err=True)
    write(described, plan)
    with ExitStack() as held:
        held.enter_context(_exclusive(described))
        _begin(described, parts, held, as_json=as_json, is_new=True)


def _exclusive(sweep: Sweep) -> AbstractContextManager[None]:
    """One command at a time submits points of a sweep, or cancels them."""
    from hpc_amp.campaigns.lock import holding

    return holding(sweep.folder / "sweep.json", "points")


def _at_once(sweep: Sweep) -> int | None:
    """The bound that arrays have; on this machine there is nobody to tell it to."""
    return None if _runs_here(sweep) else sweep.at_once


def _runs_here(sweep: Sweep) -> bool:
    """Whether the command itself runs the points, on this machine."""
    from hpc_amp.schedulers import get_scheduler

    return get_scheduler(sweep.scheduler).arrays().in_foreground


def _print_plan(plan: SweepPlan, sweep: Sweep, parts: Sequence[ArrayPart]) -> None:
    from hpc_amp.campaigns.tables import as_text
    from hpc_amp.sweep.report import points_table
    from hpc_amp.sweep.script import render_array

    click.echo("\n".join(as_text(points_table(sweep.keys, sweep.points))))
    scripts = [(part.script_name, render_array(sweep, part)) for part in parts]
    scripts += [
        (group.script, planned.launch_script())
        for group, planned in zip(sweep.groups, plan.groups, strict=True)
    ]
    for name, text in scripts:
        # As bytes: they are the script's, whatever the terminal's encoding.
        click.echo(f"\n==== {sweep.folder / name}\n".encode() + text.encode(), nl=False)


def _begin(
    sweep: Sweep, parts: Sequence[ArrayPart], held: ExitStack, *, as_json: bool, is_new: bool
) -> None:
    """Submit the parts, or run them here: then the sweep is `held` until they are on record."""
    from hpc_amp.campaigns.words import count
    from hpc_amp.errors import HpcAmpError
    from hpc_amp.jobs import rundir
    from hpc_amp.sweep.submit import submit

    points = sum(len(part.points) for part in parts)
    if _runs_here(sweep):
        _run_here(sweep, parts, held, as_json=as_json)
        return
    try:
        job_ids = submit(sweep, parts)
    except KeyboardInterrupt:
        click.echo(
            f"\nno longer submitting; the rest: hpc-amp sweep continue {sweep.folder}", err=True
        )
        raise SystemExit(130) from None
    except HpcAmpError:
        if is_new and not _was_taken(sweep):
            rundir.discard(sweep.folder)
        raise
    if as_json:
        click.echo(json.dumps(_facts(sweep, points, job_ids)))
        return
    shown = ", ".join(job_ids[:4]) + (", ..." if len(job_ids) > 4 else "")
    click.echo(
        f"submitted {count(points, 'point')} as {count(len(job_ids), 'job')} "
        f"({sweep.scheduler}): {shown}\nsweep {sweep.folder}"
    )


def _facts(sweep: Sweep, points: int, job_ids: Sequence[str]) -> dict[str, Any]:
    """What was submitted, for JSON."""
    facts = {"folder": str(sweep.folder), "points": points, "job_ids": list(job_ids)}
    return {**facts, "scheduler": sweep.scheduler}


def _show_points(sweep: Sweep, statuses: Sequence[PointStatus]) -> None:
    """What became of points that ran here, as JSON."""
    plain = [status.to_plain(sweep.keys) for status in statuses]
    click.echo(json.dumps({"folder": str(sweep.folder), "points": plain}, indent=1))


def _was_taken(sweep: Sweep) -> bool:
    """Whether the scheduler has any job of the sweep, or may have."""
    from hpc_amp.sweep.record import read_submitted

    return any(one.job_ids or not one.has_ended for one in read_submitted(sweep))


def _run_here(sweep: Sweep, parts: Sequence[ArrayPart], held: ExitStack, *, as_json: bool) -> None:
    from hpc_amp.campaigns.words import count, one_line
    from hpc_amp.sweep.here import SweepInterrupted, gpus_here, run_here, slots_here
    from hpc_amp.sweep.status import point_statuses

    slots = slots_here(sweep, gpus_here(), os.cpu_count() or 1)
    points = sum(len(part.points) for part in parts)
    click.echo(f"sweep {sweep.folder}: {count(points, 'point')}, {len(slots)} at once", err=as_json)
    ended = 0

    def say(index: int) -> None:
        nonlocal ended
        ended += 1
        (status,) = point_statuses(sweep, only=index)
        told = f"{status.state}: {one_line(status.reason)}" if status.reason else status.state
        settings = one_line(" ".join(sweep.settings(index)))
        click.echo(f"[{ended}/{points}] point {index} ({settings}) {told}", err=as_json)

    try:
        run_here(sweep, parts, slots, held.close, say)
    except (SweepInterrupted, KeyboardInterrupt):
        click.echo(f"stopped; go on with: hpc-amp sweep continue {sweep.folder}", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        click.echo(
            f"stopped, since nobody reads this any more; go on with: hpc-amp sweep continue "
            f"{sweep.folder}",
            err=True,
        )
        raise SystemExit(1) from None
    statuses = point_statuses(sweep)
    if as_json:
        _show_points(sweep, statuses)
    else:
        click.echo(f"see: hpc-amp sweep report {sweep.folder}")
    if any(status.state != "finished" for status in statuses):
        raise SystemExit(1)


@sweep.command()
@click.argument("target", metavar="SWEEP")
@sweeps_dir_option
@json_option
def status(target: str, sweeps_dir: Path, as_json: bool) -> None:
    """Show where the points of a sweep stand.

    SWEEP is a sweep's folder, or a name: then its newest sweep.
    """
    from hpc_amp.campaigns.tables import as_text
    from hpc_amp.sweep.folder import find_sweep, refuse_elsewhere
    from hpc_amp.sweep.report import in_words, status_table
    from hpc_amp.sweep.status import point_statuses

    found = find_sweep(target, sweeps_dir)
    refuse_elsewhere(found)
    statuses = point_statuses(found)
    if as_json:
        click.echo(json.dumps([status.to_plain(found.keys) for status in statuses], indent=1))
        return
    click.echo(f"{found.name}  {found.id}  {in_words(statuses)}")
    click.echo("\n".join(as_text(status_table(found.keys, statuses))))


@sweep.command()
@click.argument("target", metavar="SWEEP")
@click.option("--metric", help="What to rank by. Default: the best metric of the task.")
@click.option("--highest/--lowest", "highest_first", default=None, help="Which is better.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show only the best N.")
@json_option
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all points to FILE, too.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where table, CSV, JSON and picture go. Without it: `report` in the sweep.",
)
@sweeps_dir_option
def report(
    target: str,
    metric: str | None,
    highest_first: bool | None,
    top: int | None,
    as_json: bool,
    csv_file: Path | None,
    out: Path | None,
    sweeps_dir: Path,
) -> None:
    """Rank the points of a sweep, best first, as far as they have finished.

    A metric is a number of `summary.json` or the newest one in `metrics.jsonl`. Losses, errors and
    times are better where they are lower, and so is the best metric of a task that says so;
    --highest and --lowest say it for others. With --json only that is printed, and no files are
    written unless --out names a folder.
    """
    from hpc_amp.campaigns.output import write_file
    from hpc_amp.sweep.folder import find_sweep
    from hpc_amp.sweep.output import write_report
    from hpc_amp.sweep.ranking import rank
    from hpc_amp.sweep.report import to_csv, to_json, to_text
    from hpc_amp.sweep.status import point_statuses

    found = find_sweep(target, sweeps_dir)
    ranking = rank(found, point_statuses(found), metric, highest_first)
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


@sweep.command()
@click.argument("target", metavar="SWEEP")
@sweeps_dir_option
@json_option
def cancel(target: str, sweeps_dir: Path, as_json: bool) -> None:
    """End a sweep: all of its points that are pending or running. They save first."""
    from hpc_amp.campaigns.words import count
    from hpc_amp.jobs.control import SAVE_SECONDS
    from hpc_amp.sweep.control import cancel as cancel_sweep
    from hpc_amp.sweep.folder import find_sweep, refuse_elsewhere
    from hpc_amp.sweep.unsettled import settle

    def say_that_ranks_save() -> None:
        click.echo(f"asked the ranks to save; they have {SAVE_SECONDS} s (Ctrl-C: none)", err=True)

    found = find_sweep(target, sweeps_dir)
    refuse_elsewhere(found)
    with _exclusive(found):
        settle(found, say_that_it_waits)
        before = cancel_sweep(found, say_that_ranks_save)
    if as_json:
        click.echo(json.dumps([status.to_plain(found.keys) for status in before], indent=1))
    elif before:
        click.echo(f"cancelled {count(len(before), 'point')} of {found.folder}")
    else:
        click.echo(f"no point of {found.folder} is pending or running")


@sweep.command("continue")
@click.argument("target", metavar="SWEEP")
@max_parallel_option
@sweeps_dir_option
@json_option
def continue_(target: str, max_parallel: int | None, sweeps_dir: Path, as_json: bool) -> None:
    """Submit the points again that are missing or have not finished.

    Those with a checkpoint go on from it. What the points are, and their code, is as it was.
    """
    from dataclasses import replace

    from hpc_amp.sweep.control import nothing_to_continue, unfinished
    from hpc_amp.sweep.folder import find_sweep, refuse_elsewhere, refuse_older
    from hpc_amp.sweep.status import point_statuses
    from hpc_amp.sweep.submit import check_bound, parts_of
    from hpc_amp.sweep.unsettled import settle

    found = find_sweep(target, sweeps_dir)
    refuse_elsewhere(found)
    if max_parallel is not None:
        check_bound(found.scheduler, max_parallel)
        found = replace(found, at_once=max_parallel)
    with ExitStack() as held:
        held.enter_context(_exclusive(found))
        settle(found, say_that_it_waits)
        statuses = point_statuses(found)
        wanted = unfinished(statuses)
        if wanted:
            refuse_older(found)
            parts = parts_of(found, wanted, _at_once(found))
            _begin(found, parts, held, as_json=as_json, is_new=False)
            return
    click.echo(nothing_to_continue(statuses), err=as_json)
    if as_json and _runs_here(found):
        _show_points(found, statuses)
    elif as_json:
        click.echo(json.dumps(_facts(found, 0, [])))
