"""One job that makes several runs, one after the other."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import HpcAmpError, UnclearError, UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.shell import comment, quote, templates, verbatim
from hpc_amp.jobs.submit import waiting_for
from hpc_amp.jobs.unsettled import or_found
from hpc_amp.schedulers import Submission


@dataclass(frozen=True, slots=True)
class RunInTurn:
    """One of the runs. Its run directory has to exist when the job starts."""

    group: str
    """Where a run fails, no other of its group is made."""
    run_dir: Path
    nodes: int | None = None
    """It gets so many of the job's nodes, the first ones; None for all of them."""


def render_campaign(
    plan: Plan,
    folder: Path,
    runs: Sequence[RunInTurn],
    *,
    what: str,
    group: str,
    limited: bool = False,
    keep_checkpoints: bool = True,
) -> str:
    """The script, which lies in `folder`, for the resources of `plan`. `what` says what it is, and
    `group` what the runs of a group have in common. `limited`: a run that seems to be too long for
    the time that is left is not started."""
    plan = dataclasses.replace(plan, run_dir=folder)
    has_limit = limited and plan.scheduler.limits
    context = {
        "marker": verbatim(plan.scheduler.marker),
        "directives": [verbatim(line) for line in plan.scheduler.directives(plan)],
        "name_comment": comment(plan.job.name),
        "what": comment(what),
        "version": verbatim(plan.version),
        "folder": quote(str(folder)),
        "run_dir": quote(str(runs[0].run_dir)),
        "scheduler": verbatim(plan.scheduler.name),
        "tasks_per_node": plan.tasks_per_node,
        "limit": plan.walltime - plan.stop_margin if has_limit else verbatim("none"),
        "group": quote(group),
        "checkpoints": verbatim("keep" if keep_checkpoints else "drop"),
        "runs": [
            (quote(run.group), run.nodes or verbatim("all"), quote(str(run.run_dir)))
            for run in runs
        ],
    }
    return templates("jobs").get_template("several.sh.j2").render(context)


def next_allocation(campaign: Path) -> Path:
    """A folder in the campaign's `allocations` for the script and the log of a further job. Raises
    UsageError where it cannot be made."""
    parent = campaign / "allocations"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = parent / str(len(list(parent.iterdir())) + 1)
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{campaign} cannot be written: {error.strerror}") from None
    return folder


def submit_in_turn(
    folder: Path, script: str, runs: Sequence[tuple[Plan, str]], *, unclear: str
) -> Submission:
    """Make the run directories of `runs`, plans with the texts of their job files, and submit the
    job that makes all of them. `folder` gets its `script` as `launch.sh`.

    Raises HpcAmpError where it is refused; neither `folder` nor a run directory stays behind then.
    Where the scheduler may have taken it all the same, everything stays (UnclearError, with the
    hint `unclear`).
    """
    plans = [plan for plan, _ in runs]
    scheduler = plans[0].scheduler
    taken = False
    try:
        path = _write_script(folder, script)
        for plan, config_text in runs:
            rundir.create(plan, render(plan), config_text)
        with waiting_for(scheduler):
            for plan in plans:
                record_event(
                    plan.run_dir, "submitted", scheduler=scheduler.name, folder=str(folder)
                )
            submission = or_found(
                lambda: scheduler.submit(path, os.environ), scheduler.name, folder, ()
            )
            taken = True
            for plan in plans:
                record_event(plan.run_dir, "queued", job_id=submission.job_id)
    except UnclearError as error:
        raise UnclearError(
            f"{error.message}; whether the job is in the queue is not known", hint=unclear
        ) from None
    except HpcAmpError:
        # A job that is in the queue keeps its folders, though the disk does not take its id.
        for made in () if taken else (folder, *(plan.run_dir for plan in plans)):
            rundir.discard(made)
        raise
    return submission


def _write_script(folder: Path, text: str) -> Path:
    script = folder / "launch.sh"
    try:
        script.write_text(text)
        script.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{script} cannot be written: {error.strerror}") from None
    return script
