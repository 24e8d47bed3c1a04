"""The commands for single runs: `hpc-amp wait`, `logs`, `cancel` and `resume`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.follow import follow_until_interrupted, report_submission, say_why_it_waits
from hpc_amp.cli.options import complete_runs, json_option, overrides_argument, runs_dir_option
from hpc_amp.errors import to_type

if TYPE_CHECKING:
    from hpc_amp.jobs.status import RunStatus


@click.command()
@click.argument("target", metavar="[RUN]", required=False, shell_complete=complete_runs)
@runs_dir_option
@json_option
def wait(target: str | None, runs_dir: Path, as_json: bool) -> None:
    """Wait until a run, or all points of a sweep, study or benchmark, have ended.

    Without RUN, wait for the newest run. The exit status is 0 if all have finished, else 1. Ctrl-C
    ends this command; the runs continue.
    """
    from hpc_amp.campaigns.found import find
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.follow import follow as follow_run

    folder, is_campaign = (
        (rundir.newest_run(runs_dir), False) if target is None else find(target, runs_dir)
    )
    if target is None:
        click.echo(f"run {folder}", err=True)
    try:
        if is_campaign:
            _wait_for_campaign(folder, as_json)
            return
        rundir.refuse_elsewhere(folder)
        status = follow_run(folder, lambda text: None, on_wait=say_why_it_waits)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    reason = f" ({status.reason})" if status.reason else ""
    plain = f"{status.name}: {status.state}{reason}"
    click.echo(json.dumps(status.to_plain()) if as_json else plain)
    if status.state != "finished":
        raise SystemExit(1)


def _wait_for_campaign(folder: Path, as_json: bool) -> None:
    """Wait until no point of a campaign is under way; exit with 1 unless all are done."""
    import time

    from hpc_amp.campaigns.folder import read_campaign, refuse_elsewhere
    from hpc_amp.campaigns.overview import in_words, status_to_plain
    from hpc_amp.campaigns.status import UNDER_WAY
    from hpc_amp.campaigns.views import view_of
    from hpc_amp.schedulers import get_scheduler

    campaign = read_campaign(folder)
    refuse_elsewhere(campaign)
    view, scheduler = view_of(campaign.view), get_scheduler(campaign.scheduler)
    while True:
        statuses = view.statuses(campaign)
        if not any(status.state in UNDER_WAY for status in statuses):
            break
        time.sleep(1.0 if scheduler.one_machine else scheduler.ask_seconds)
    if as_json:
        click.echo(json.dumps(status_to_plain(campaign, statuses, view.labels(campaign))))
    else:
        click.echo(f"{campaign.name}: {in_words(statuses, view.runs)}")
    if any(status.state != view.done for status in statuses):
        raise SystemExit(1)


@click.command()
@click.argument("target", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Print new lines until the run ends."
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines."
)
@runs_dir_option
def logs(target: str | None, following: bool, lines: int | None, runs_dir: Path) -> None:
    """Print the log of a run; without RUN, of the newest one."""
    from hpc_amp.jobs.places import find_run, newest_run

    if target is None:
        run_dir = newest_run(runs_dir)
        click.echo(f"log of {run_dir}", err=True)
    else:
        run_dir = find_run(target, runs_dir)
    if following:
        from hpc_amp.jobs.rundir import refuse_elsewhere

        refuse_elsewhere(run_dir)
    log = run_dir / "logs" / "job.log"
    data = log.read_bytes() if log.exists() else b""
    text = data.decode(errors="replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    click.echo(text, nl=False)
    if not following:
        if not data:
            click.echo(f"the job has written nothing yet ({log})", err=True)
        return

    def write(piece: str) -> None:
        click.echo(piece, nl=False)
        sys.stdout.flush()

    from hpc_amp.jobs.follow import follow as follow_run

    try:
        follow_run(run_dir, write, offset=len(data), on_wait=say_why_it_waits)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _say_that_ranks_save() -> None:
    from hpc_amp.jobs.control import SAVE_SECONDS

    click.echo(
        f"asked the ranks to save a checkpoint; the job is cancelled when they have saved, at the "
        f"latest in {SAVE_SECONDS} s (Ctrl-C cancels it now)",
        err=True,
    )


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--save", is_flag=True, help="Wait until the ranks have saved a checkpoint and stopped."
)
@runs_dir_option
@json_option
def cancel(targets: tuple[str, ...], save: bool, runs_dir: Path, as_json: bool) -> None:
    """Cancel runs.

    The ranks save a checkpoint if the scheduler gives them enough time between its signal and the
    kill. With --save they have as much time as they need. `hpc-amp resume` continues the run.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.events import FINAL

    facts: list[dict[str, Any]] = []
    for target in targets:
        run_dir = rundir.find_run(target, runs_dir)
        before, text = _save(run_dir) if save else _cancel(run_dir)
        facts.append({"run_dir": str(run_dir), "job_id": before.job_id, "state": before.state})
        if not as_json:
            click.echo(text)
        if run_dir.parent.name == Path(target).name and before.state in FINAL:
            _say_which_older_go_on(run_dir)
    if as_json:
        click.echo(json.dumps(facts, indent=1))


def _say_which_older_go_on(run_dir: Path) -> None:
    """Say which other runs of the same name have not ended: the newest one was chosen."""
    from hpc_amp.jobs.status import run_statuses

    others = [path.parent for path in sorted(run_dir.parent.glob("[0-9]*/job.json"))]
    under_way = [s.run_dir for s in run_statuses(others) if s.state in ("pending", "running")]
    if under_way:
        click.echo(
            f"note: older runs of this name have not ended; to end them: "
            f"{to_type('cancel', *under_way)}",
            err=True,
        )


def _cancel(run_dir: Path) -> tuple[RunStatus, str]:
    """End a run; return its previous status and a line for the user."""
    from hpc_amp.jobs.attempts import Orphan
    from hpc_amp.jobs.control import cancel as cancel_run
    from hpc_amp.jobs.events import read_events

    events = read_events(run_dir)
    asked_before = bool(events) and events[-1]["state"] == "cancelled"
    found: list[Orphan] = []
    before = cancel_run(run_dir, on_wait=_say_that_ranks_save, on_orphan=found.append)
    for orphan in found:
        by_hand = f"ssh {orphan.host} kill {orphan.pid}"
        return before, (
            f"asked {run_dir} to stop: {orphan}. If it does not stop (your own program may ignore "
            f"the stop file): {by_hand}"
        )
    if before.state not in ("pending", "running", "unknown"):
        return before, f"{run_dir} has already ended ({before.state})"
    if asked_before:
        return before, (
            f"job {before.job_id} of {run_dir} was cancelled before, and has not ended; asked the "
            "scheduler again"
        )
    return before, f"cancelled job {before.job_id} of {run_dir}"


def _save(run_dir: Path) -> tuple[RunStatus, str]:
    """Let a run save a checkpoint and stop; return its previous status and a line for the user."""
    from hpc_amp.jobs.control import save_and_stop

    def say_that_it_was_asked(status: RunStatus) -> None:
        click.echo(
            f"asked job {status.job_id} to save and stop; it will not restart by itself (Ctrl-C "
            "returns without waiting)",
            err=True,
        )

    try:
        stopped = save_and_stop(run_dir, on_wait=say_that_it_was_asked)
    except KeyboardInterrupt:
        click.echo(f"not waiting any more; see {to_type('status', run_dir)}", err=True)
        raise SystemExit(130) from None
    before, after = stopped.before, stopped.after
    if stopped.how == "ended before":
        return before, f"{run_dir} has already ended ({before.state})"
    if stopped.how == "cancelled":
        saved = "its checkpoints are kept" if before.attempt else "there was nothing to save"
        return before, f"cancelled job {before.job_id} of {run_dir}, which was not running: {saved}"
    if stopped.how == "asked":
        return before, (
            f"{run_dir} runs your own program: it stops when it sees the file attempts/"
            f"{before.attempt}/stop, or at its time limit, and does not restart after that"
        )
    step = f" at step {after.step}" if after.step is not None else ""
    return before, f"{run_dir} is {after.state}{step}: {after.reason}"


def _without_secret(override: str) -> str:
    """The override for a log: without its value if that may contain a password."""
    key = override.partition("=")[0]
    may_be_secret = key == "container" or key.startswith("container.env")
    return f"{key}=..." if may_be_secret else override


@click.command()
@click.argument("target", metavar="RUN", shell_complete=complete_runs)
@overrides_argument
@click.option("--follow", is_flag=True, help="Print the log until the run ends, then a summary.")
@click.option(
    "--here", is_flag=True, help="Continue a run that was copied or moved, in its present folder."
)
@runs_dir_option
@json_option
def resume(
    target: str,
    overrides: tuple[str, ...],
    follow: bool,
    here: bool,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Submit a run again; it continues from its newest checkpoint.

    KEY=VALUE changes a value of its job: train.epochs=20 job.walltime=4h. A finished run continues
    if the change gives it more steps. docs/reliability.md lists the keys that cannot change.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.resume import Resumed
    from hpc_amp.jobs.resume import resume as resume_run

    run_dir = rundir.find_run(target, runs_dir)
    log = run_dir / "logs" / "job.log"
    words = [*(["--here"] if here else []), target, *map(_without_secret, overrides)]
    command = to_type("resume", *words)

    def tell(resumed: Resumed) -> None:
        for remark in resumed.remarks:
            click.echo(f"note: {remark}", err=True)
        for one in resumed.changed:
            click.echo(f"changed: {one}", err=True)
        report_submission(resumed.submission, run_dir, resumed.scheduler, as_json=as_json)

    def say_that_it_waits(job_id: str) -> None:
        click.echo(f"job {job_id} is still ending; waiting for it", err=True)

    resume_run(run_dir, overrides, command, tell, say_that_it_waits, here=here)
    if follow:
        follow_until_interrupted(run_dir, as_json=as_json, from_end=log.exists())
