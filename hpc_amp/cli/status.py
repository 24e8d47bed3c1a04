"""`hpc-amp status`: a line for each run, or the details of named runs."""

from __future__ import annotations

import calendar
import json
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import complete_runs, json_option, runs_dir_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpc_amp.jobs.attempts import Attempt
    from hpc_amp.jobs.details import RunDetails
    from hpc_amp.jobs.status import RunStatus

_WATCH_SECONDS = 2.0


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
@click.option("-w", "--watch", is_flag=True, help="Show it again and again, until all have ended.")
@click.option(
    "-n",
    "--newest",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the newest N, newest first.",
)
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only runs in this state.")
@click.option(
    "--name", "pattern", metavar="PATTERN", help="Only jobs of this name, such as 'gan*'."
)
@runs_dir_option
@json_option
def status(
    targets: tuple[str, ...],
    watch: bool,
    newest: int | None,
    states: tuple[str, ...],
    pattern: str | None,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Show the state of runs.

    Without RUN, one line for each run is printed. With RUN, its details and all its attempts are
    printed. Ctrl-C ends --watch; the runs continue.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.status import FINAL, STATES

    for state in states:
        if state not in STATES:
            raise click.BadParameter(f"{state!r} is not one of {', '.join(STATES)}.")
    if targets and (newest or states or pattern):
        raise click.UsageError("-n, --state and --name choose among all runs: leave out RUN.")
    if watch and as_json:
        raise click.UsageError("Give either --watch or --json.")
    named = [rundir.find_run(target, runs_dir) for target in targets]

    def show() -> bool:
        """Print once. Returns whether all have ended."""
        if named:
            from hpc_amp.jobs.details import run_details

            found = run_details(named)
            if as_json:
                click.echo(json.dumps([entry.to_plain() for entry in found], indent=1))
            else:
                click.echo("\n\n".join(_details(entry) for entry in found))
            return all(entry.status.state in FINAL for entry in found)
        statuses = _chosen(rundir.all_runs(runs_dir), pattern, states, newest)
        if as_json:
            click.echo(json.dumps([entry.to_plain() for entry in statuses], indent=1))
        elif not statuses:
            few = " that are asked for" if pattern or states else ""
            click.echo(f"no runs{few} in {runs_dir}")
        else:
            click.echo(_overview(statuses))
        return all(entry.state in FINAL for entry in statuses)

    if not watch:
        show()
        return
    try:
        _again_and_again(show)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


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


def _again_and_again(show: Callable[[], bool]) -> None:
    """Call `show` until it returns True. A terminal is cleared before."""
    while True:
        click.clear()  # nothing where the output is not a terminal
        if show():
            return
        sys.stdout.flush()
        time.sleep(_WATCH_SECONDS)


def _chosen(
    folders: list[Path], pattern: str | None, states: tuple[str, ...], newest: int | None
) -> list[RunStatus]:
    """The statuses of the runs that are asked for. Those of other runs are not read, as far as
    their names and places say enough."""
    from hpc_amp.jobs.status import run_statuses

    if pattern is not None:
        folders = [folder for folder in folders if fnmatch(folder.parent.name, pattern)]
    if newest is None:
        statuses = run_statuses(folders)
        return [one for one in statuses if not states or one.state in states]
    folders = folders[::-1]
    if not states:
        return run_statuses(folders[:newest])
    return [one for one in run_statuses(folders) if one.state in states][:newest]


def _overview(statuses: list[RunStatus]) -> str:
    rows = [("NAME", "STATE", "AGE", "STEP", "ATTEMPT", "JOB", "RUN DIRECTORY")]
    for entry in statuses:
        total = f"/{entry.total_steps}" if entry.total_steps else ""
        step = "-" if entry.step is None else f"{entry.step}{total}"
        where = Path(entry.run_dir)
        here = where.relative_to(Path.cwd()) if where.is_relative_to(Path.cwd()) else where
        rows.append(
            (
                *(entry.name, entry.state, _age(where.name), step, str(entry.attempt)),
                *(entry.job_id or "-", str(here)),
            )
        )
    first, *lines = _columns(rows)
    text = [first]
    for entry, line in zip(statuses, lines, strict=True):
        text.append(line)
        if entry.reason and entry.state != "finished":
            text.append(f"    {entry.reason}")
    return "\n".join(text)


def _age(run_id: str) -> str:
    """How long ago a run was submitted, from the time in its id: `45s`, `12m`, `3h`, `2d`."""
    try:
        then = calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return "-"
    seconds = max(0, int(time.time()) - then)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


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
