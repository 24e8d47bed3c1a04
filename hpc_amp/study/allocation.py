"""All runs of a study in one job, one after the other, where queues are long.

The job has the nodes of the largest run. Each run is an ordinary one with its own launch script,
which gets the first of the job's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_amp.campaigns.in_turn import (
    RunInTurn,
    next_allocation,
    render_campaign,
    submit_in_turn,
)
from hpc_amp.errors import HpcAmpError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.plan import Plan
from hpc_amp.schedulers import Submission
from hpc_amp.study.folder import Study
from hpc_amp.study.recipe import Measurement, Recipe
from hpc_amp.study.submission import plan_run, point_all


def submit_allocation(study: Study, recipe: Recipe, wanted: Sequence[Measurement]) -> Submission:
    """Make the run directories of all `wanted`, and submit the job that works them off. Raises
    SchedulerError where it is refused; nothing stays behind then."""
    folder = next_allocation(study.folder)
    runs: list[tuple[Plan, str]] = []
    try:
        for measurement in wanted:
            taken = [plan.run_dir for plan, _ in runs]
            plan, loaded = plan_run(study, recipe, measurement, taken)
            point_all(study, measurement, plan.run_dir)
            runs.append((plan, loaded.text))
        script = render_allocation(folder, wanted, [plan for plan, _ in runs])
    except HpcAmpError:
        rundir.discard(folder)
        raise
    unclear = f"hpc-amp scale continue {study.folder} looks for it"
    return submit_in_turn(folder, script, runs, unclear=unclear)


def render_allocation(folder: Path, wanted: Sequence[Measurement], plans: Sequence[Plan]) -> str:
    """The script of the job: the directives of the largest run, then the launch scripts of all."""
    largest = max(plans, key=lambda plan: plan.job.resources.nodes)
    runs = [
        RunInTurn(f"{one.first.kind}-n{one.first.nodes:04d}", plan.run_dir, one.first.nodes)
        for one, plan in zip(wanted, plans, strict=True)
    ]
    what = "runs of a scaling study"
    return render_campaign(largest, folder, runs, what=what, group="point", limited=True)
