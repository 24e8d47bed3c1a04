"""All runs of a study in one job, one after the other, where queues are long.

The job has the nodes of the largest run. Each run is an ordinary one with its own launch script,
which gets the first of the job's nodes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.campaigns.script import RunInTurn, render_campaign
from hpc_amp.errors import HpcAmpError, UnclearError, UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import waiting_for
from hpc_amp.jobs.unsettled import or_found
from hpc_amp.schedulers import Submission
from hpc_amp.study.folder import Study
from hpc_amp.study.recipe import Measurement, Recipe
from hpc_amp.study.submission import plan_run, point_all


def submit_allocation(study: Study, recipe: Recipe, wanted: Sequence[Measurement]) -> Submission:
    """Make the run directories of all `wanted`, and submit the job that works them off. Raises
    SchedulerError where it is refused; nothing stays behind then."""
    folder = _next_folder(study)
    plans: list[Plan] = []
    taken = False
    try:
        for measurement in wanted:
            plan, loaded = plan_run(study, recipe, measurement)
            point_all(study, measurement, plan.run_dir)
            rundir.create(plan, render(plan), loaded.text)
            plans.append(plan)
        script = _write_script(folder, wanted, plans)
        scheduler = plans[0].scheduler
        with waiting_for(scheduler):
            for plan in plans:
                record_event(
                    plan.run_dir, "submitted", scheduler=scheduler.name, folder=str(folder)
                )
            submission = or_found(
                lambda: scheduler.submit(script, os.environ), scheduler.name, folder, ()
            )
            taken = True
            for plan in plans:
                record_event(plan.run_dir, "queued", job_id=submission.job_id)
    except UnclearError as error:
        raise UnclearError(
            f"{error.message}; whether the job is in the queue is not known",
            hint=f"hpc-amp scale continue {study.folder} looks for it",
        ) from None
    except HpcAmpError:
        # A job that is in the queue keeps its folders, though the disk does not take its id.
        for path in () if taken else (folder, *(plan.run_dir for plan in plans)):
            rundir.discard(path)
        raise
    return submission


def _next_folder(study: Study) -> Path:
    """A folder for a further job. Raises UsageError."""
    parent = study.folder / "allocations"
    try:
        parent.mkdir(exist_ok=True)
        folder = parent / str(len(list(parent.iterdir())) + 1)
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{study.folder} cannot be written: {error.strerror}") from None
    return folder


def _write_script(folder: Path, wanted: Sequence[Measurement], plans: Sequence[Plan]) -> Path:
    script = folder / "launch.sh"
    try:
        script.write_text(render_allocation(folder, wanted, plans))
        script.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{script} cannot be written: {error.strerror}") from None
    return script


def render_allocation(folder: Path, wanted: Sequence[Measurement], plans: Sequence[Plan]) -> str:
    """The script of the job: the directives of the largest run, then the launch scripts of all."""
    largest = max(plans, key=lambda plan: plan.job.job.nodes)
    runs = [
        RunInTurn(f"{one.first.kind}-n{one.first.nodes:04d}", plan.run_dir, one.first.nodes)
        for one, plan in zip(wanted, plans, strict=True)
    ]
    what = "runs of a scaling study"
    return render_campaign(largest, folder, runs, what=what, group="point", limited=True)
