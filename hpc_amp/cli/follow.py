"""What commands that start or follow a run print."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.errors import to_type

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan
    from hpc_amp.schedulers import Submission


def say_remarks(plan: Plan) -> None:
    for remark in plan.remarks:
        click.echo(f"note: {remark}", err=True)


def report_submission(
    submission: Submission, run_dir: Path, scheduler: str, *, as_json: bool
) -> None:
    if submission.remarks:
        click.echo(submission.remarks, err=True)
    if as_json:
        facts = {"job_id": submission.job_id, "run_dir": str(run_dir), "scheduler": scheduler}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"submitted job {submission.job_id} ({scheduler})\nrun directory {run_dir}")


def wait_here(plan: Plan, submission: Submission, *, as_json: bool = False) -> None:
    """Show a job of this machine until it ends. Ctrl-C, SIGTERM, SIGHUP and a closed output stop
    it. One that cannot be written, such as on a full disk, only ends the command."""
    from hpc_amp.errors import FULL_DISK, HpcAmpError
    from hpc_amp.jobs.control import cancel as cancel_run
    from hpc_amp.signals import interrupted_by_all

    with interrupted_by_all():
        try:
            report_submission(submission, plan.run_dir, plan.scheduler.name, as_json=as_json)
            _follow(plan.run_dir, as_json=as_json)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            where = "" if plan.job.train is None else " at a checkpoint"
            with contextlib.suppress(OSError):  # the terminal may be closed
                click.echo(
                    f"\nstopping{where}; press Ctrl-C again to return without waiting for it",
                    err=as_json,
                )
            closed = isinstance(error, BrokenPipeError)
            what = "its output was closed" if closed else "it was interrupted"
            cancel_run(plan.run_dir, reason=f"by its command: {what}")
            try:
                _follow(plan.run_dir, as_json=as_json, from_end=True)
            except OSError:
                raise SystemExit(1) from None
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise HpcAmpError(
                f"the output cannot be written ({error.strerror}), and the run goes on",
                hint=f"{to_type('cancel', plan.run_dir)} ends it",
            ) from None


def _follow(run_dir: Path, *, as_json: bool, from_end: bool = False) -> None:
    """Print the log until the run ends, then a summary; exit with 1 unless the run finished."""
    from hpc_amp.files import finite
    from hpc_amp.jobs.follow import follow as follow_run
    from hpc_amp.jobs.summary import describe, read_summary

    log = run_dir / "logs" / "job.log"
    offset = log.stat().st_size if from_end and log.exists() else 0
    out = sys.stderr if as_json else sys.stdout

    def write(text: str) -> None:
        out.write(text)
        out.flush()

    status = follow_run(run_dir, write, offset=offset, on_wait=say_why_it_waits)
    if as_json:
        facts = {**status.to_plain(), "summary": finite(read_summary(run_dir))}
        click.echo(json.dumps(facts))
    else:
        click.echo("\n" + describe(status))
    if status.state != "finished":
        raise SystemExit(1)


def follow_until_interrupted(run_dir: Path, *, as_json: bool, from_end: bool = False) -> None:
    """Like `_follow`, but Ctrl-C only ends this command; the run continues."""
    try:
        _follow(run_dir, as_json=as_json, from_end=from_end)
    except KeyboardInterrupt:
        click.echo(
            f"\nthe run continues. To print its log: {to_type('logs', '-f', run_dir)}   "
            f"To end it: {to_type('cancel', run_dir)}",
            err=True,
        )
        raise SystemExit(130) from None


def say_why_it_waits(text: str) -> None:
    click.echo(text, err=True)
