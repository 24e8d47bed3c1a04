"""`hpc-amp status`: a line for each run, or the details of named runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.options import complete_runs, json_option, runs_dir_option
from hpc_amp.cli.screen import Screen

if TYPE_CHECKING:
    from hpc_amp.jobs.attempts import Attempt
    from hpc_amp.jobs.details import RunDetails

_SHOWN = 20
"""Rows that a terminal shows if -n is not given, besides those that have not ended."""


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until all have ended.")
@click.option(
    "--interval",
    type=click.FloatRange(min=1),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: the time between two looks. The scheduler is asked once for each.",
)
@click.option("-n", "--newest", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only runs in this state.")
@click.option(
    "--name", "pattern", metavar="PATTERN", help="Only jobs of this name, such as 'gan*'."
)
@click.option("-a", "--all", "everywhere", is_flag=True, help="All runs, of all known folders.")
@click.option("--size", "sized", is_flag=True, help="Show the size of all files too.")
@runs_dir_option
@json_option
@click.pass_context
def status(
    ctx: click.Context,
    targets: tuple[str, ...],
    watch: bool,
    interval: float,
    newest: int | None,
    states: tuple[str, ...],
    pattern: str | None,
    everywhere: bool,
    sized: bool,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Show the state of runs, sweeps, studies and benchmarks, the newest first.

    \b
      hpc-amp status                        those of this folder
      hpc-amp status -w -n 5                the newest five, again and again
      hpc-amp status --all --state failed   those of all folders that were used before
      hpc-amp status cifar                  the newest run, or sweep, of a name, with all details

    Without RUN, there is one line each, and a second one that says why it waits or failed. In a
    folder without runs, those of all known folders are shown. In a pipe, columns are separated by
    tabs. Ctrl-C ends --watch; the runs continue.
    """
    from hpc_amp.campaigns.listed import STATES

    for state in states:
        if state not in STATES:
            raise click.BadParameter(f"{state!r} is not one of {', '.join(STATES)}.")
    if targets and (newest or states or pattern or everywhere or sized):
        raise click.UsageError("The other options choose among all runs: leave out RUN.")
    if watch and as_json:
        raise click.UsageError("Give either --watch or --json.")
    if targets:
        look = _look_at(targets, runs_dir, as_json=as_json)
    else:
        source = ctx.get_parameter_source("runs_dir")
        only = runs_dir if source is not click.core.ParameterSource.DEFAULT else None
        look = _look_at_all(only, newest, states, pattern, everywhere, sized, as_json=as_json)
    if not watch:
        click.echo("\n".join(look(Screen())[0]))
        return
    try:
        _again_and_again(look, interval)
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal has written ^C
        raise SystemExit(130) from None


Look = Callable[[Screen], tuple[list[str], bool]]
"""Returns the lines to show, and whether all have ended."""


def _again_and_again(look: Look, interval: float) -> None:
    screen = Screen()
    while True:
        lines, all_ended = look(screen)
        screen.draw(lines)
        if all_ended:
            return
        time.sleep(interval)


def _look_at(targets: Sequence[str], runs_dir: Path, *, as_json: bool) -> Look:
    """Show the details of named runs and campaigns."""
    from hpc_amp.campaigns.found import find

    found = dict(find(target, runs_dir) for target in targets)

    def look(screen: Screen) -> tuple[list[str], bool]:
        runs = iter(_runs([folder for folder, is_campaign in found.items() if not is_campaign]))
        shown = [_campaign(folder) if found[folder] else next(runs) for folder in found]
        all_ended = all(ended for _, _, ended in shown)
        if as_json:
            return [json.dumps([plain for _, plain, _ in shown], indent=1)], all_ended
        return "\n\n".join(text for text, _, _ in shown).splitlines(), all_ended

    return look


Shown = tuple[str, dict[str, Any], bool]
"""The details of a run or a campaign, as text and as JSON values; and whether it has ended."""


def _runs(folders: Sequence[Path]) -> list[Shown]:
    from hpc_amp.jobs.details import run_details
    from hpc_amp.jobs.events import FINAL
    from hpc_amp.jobs.places import has_no_job

    shown = []
    for one in run_details(folders):
        ended = one.status.state in FINAL or has_no_job(Path(one.status.run_dir))
        shown.append((_details(one), one.to_plain(), ended))
    return shown


def _campaign(folder: Path) -> Shown:
    from hpc_amp.campaigns.folder import read_campaign
    from hpc_amp.campaigns.overview import describe_status, status_to_plain
    from hpc_amp.campaigns.status import UNDER_WAY
    from hpc_amp.campaigns.views import view_of

    campaign = read_campaign(folder)
    view = view_of(campaign.view)
    statuses, labels = view.statuses(campaign), view.labels(campaign)
    return (
        describe_status(campaign, statuses, labels, view.runs),
        status_to_plain(campaign, statuses, labels),
        all(status.state not in UNDER_WAY for status in statuses),
    )


def _look_at_all(
    only: Path | None,
    newest: int | None,
    states: tuple[str, ...],
    pattern: str | None,
    everywhere: bool,
    sized: bool,
    *,
    as_json: bool,
) -> Look:
    """Show a line for each run and campaign. `only`: of this folder alone."""
    from hpc_amp.campaigns.found import folders_to_list
    from hpc_amp.campaigns.listed import Wanted, rows_of
    from hpc_amp.cli.overview import as_table, as_tabs
    from hpc_amp.jobs.places import has_no_job

    folders, absent = folders_to_list(only, everywhere=everywhere)

    def look(screen: Screen) -> tuple[list[str], bool]:
        few = newest is None and not everywhere and screen.is_terminal and not as_json
        wanted = Wanted(_SHOWN if few else newest, states, pattern, keep_under_way=few)
        rows, more = rows_of(folders, wanted)
        if sized:
            from hpc_amp.jobs.removal import size_of

            for row in rows:
                row.size = size_of(Path(row.folder))
        all_ended = all(row.ended or has_no_job(Path(row.folder)) for row in rows)
        if as_json:
            return [json.dumps([row.to_plain() for row in rows], indent=1)], all_ended
        if not rows:
            chosen = " matching" if pattern or states else ""
            return [f"no{chosen} runs in {only or 'runs'}"], True
        if not screen.is_terminal:
            return as_tabs(rows), all_ended
        notes = [f"{more} older: --all, or -n {more + len(rows)}"] if few and more else []
        notes += [f"cannot be reached at present: {folder}" for folder in absent]
        below = [screen.coloured(screen.cut(one, screen.width), "dim") for one in notes]
        return [*as_table(rows, screen), *below], all_ended

    return look


@click.command()
@click.argument(
    "targets", nargs=-1, required=True, metavar="RUN RUN...", shell_complete=complete_runs
)
@runs_dir_option
@json_option
def compare(targets: tuple[str, ...], runs_dir: Path, as_json: bool) -> None:
    """Show runs side by side: the settings that differ, and the results."""
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.compared import as_text, compare_runs

    if len(targets) < 2:
        raise click.UsageError("Name two runs or more.")
    compared = compare_runs([rundir.find_run(target, runs_dir) for target in targets])
    click.echo(json.dumps(compared.to_plain(), indent=1) if as_json else as_text(compared))


def _details(found: RunDetails) -> str:
    entry = found.status
    reason = f" ({entry.reason})" if entry.reason else ""
    rows = [("run", entry.run_dir), ("job", f"{entry.job_id or '-'} ({entry.scheduler})")]
    if entry.step is not None and entry.total_steps:
        text = f"step {entry.step} of {entry.total_steps} ({entry.step / entry.total_steps:.0%})"
        if found.seconds_to_go is not None:
            text += f", about {_duration(found.seconds_to_go)} left"
        rows.append(("progress", text))
    elif entry.step is not None:
        rows.append(("progress", f"step {entry.step}"))
    if found.time_left is not None:
        rows.append(("time left", f"{_duration(found.time_left)} until the job's time limit"))
    if (beat := found.heartbeat) is not None:
        ranks = f"{beat.ranks} rank{'s' * (beat.ranks != 1)}"
        oldest = f"rank {beat.rank} on {beat.host}, step {beat.step}, {beat.phase}"
        rows.append(
            ("alive", f"{ranks}, each reported within the last {beat.age} s (oldest: {oldest})")
        )
    if found.code is not None:
        rows.append(("code", str(found.code)))
    lines = [f"{entry.name}: {entry.state}{reason}"]
    lines += [f"  {name:<9}  {value}" for name, value in rows]
    if found.attempts:
        header = ("ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "STEPS", "ENDED")
        table = [header, *(_attempt(attempt) for attempt in found.attempts)]
        lines += ["", *(f"  {line}" for line in _columns(table))]
    if found.changes:
        lines += ["", "  CHANGED"]
    for change in found.changes:
        changed = ", ".join(map(str, change.changed))
        lines.append(f"  {_date(change.time)}  {changed}  ({change.command})")
    return "\n".join(lines)


def _attempt(attempt: Attempt) -> tuple[str, ...]:
    started = "-" if attempt.start is None else _date(attempt.start)
    took = "-"
    if attempt.start is not None:
        end = attempt.end if attempt.end is not None else int(time.time())
        took = _duration(max(0, end - attempt.start))
    steps = "-"
    if attempt.to_step is not None:
        steps = f"{attempt.from_step or 0} to {attempt.to_step}"
    return (
        *(str(attempt.number), attempt.job_id or "-", attempt.host or "-", started, took, steps),
        attempt.ending or attempt.state,
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as aligned lines. The first row has the titles."""
    from hpc_amp.campaigns.tables import Table, as_text

    titles = rows[0]
    return as_text(Table(titles, tuple(rows[1:]), words=frozenset(titles)))


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _duration(seconds: int) -> str:
    from hpc_amp.config.units import format_duration

    return format_duration(seconds)
