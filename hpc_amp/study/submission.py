"""Handing the runs of a study to the scheduler, so that whatever ends this command, and whenever,
none is lost and none is submitted twice.

The point names the run directory before it exists, and the run's `state.jsonl` says `submitted`
before the scheduler is asked, and `queued` afterwards. What a run lacks then tells how far it came:
without `submitted`, no job can exist; between the two, `hpc_amp.campaigns.unsettled` finds out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from hpc_amp.config.load import LoadedJob
from hpc_amp.errors import ConfigError, HpcAmpError, SchedulerError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.submit import prepare, submit, waiting_for
from hpc_amp.schedulers import Submission
from hpc_amp.study.draft import runs_dir
from hpc_amp.study.folder import Study
from hpc_amp.study.progress import Progress, progress
from hpc_amp.study.recipe import Measurement, Recipe

POLL_SECONDS = 10.0

Tell = Callable[[Measurement, str], object]
"""Is told of a measurement that was submitted, and its job id."""


def submit_runs(
    study: Study,
    recipe: Recipe,
    wanted: Sequence[Measurement],
    *,
    max_queued: int | None,
    tell: Tell,
) -> None:
    """Submit one job a measurement. With `max_queued`, so many of the study's jobs are in the queue
    at most, and this waits for room. Raises SchedulerError where one is refused; those before it go
    on."""
    waiting = list(wanted)
    submitted = 0
    while waiting:
        room = len(waiting)
        if max_queued is not None:
            room = max_queued - sum(one.is_under_way for one in progress(study))
        for measurement in waiting[: max(0, room)]:
            try:
                submission = _hand_in(study, recipe, measurement)
            except HpcAmpError as error:
                raise _after(submitted, study, error) from None
            tell(measurement, submission.job_id)
            submitted += 1
        waiting = waiting[max(0, room) :]
        if waiting:
            time.sleep(POLL_SECONDS)


def _after(submitted: int, study: Study, error: HpcAmpError) -> HpcAmpError:
    if submitted == 0:
        return error
    return SchedulerError(
        f"{error}; {submitted} runs were submitted before",
        hint=f"hpc-amp scale continue {study.folder} submits the rest",
    )


def _hand_in(study: Study, recipe: Recipe, measurement: Measurement) -> Submission:
    plan, loaded = plan_run(study, recipe, measurement)
    with waiting_for(plan.scheduler):
        point_all(study, measurement, plan.run_dir)
        return submit(plan, loaded.text)


def base_plan(study: Study, recipe: Recipe) -> tuple[Plan, LoadedJob]:
    """The study's job as it was given. The working directory has to be the recipe's."""
    return prepare(study.folder / "config.yaml", recipe.overrides)


def plan_run(
    study: Study, recipe: Recipe, measurement: Measurement, taken: Collection[Path] = ()
) -> tuple[Plan, LoadedJob]:
    """The plan of a new run of a measurement, in a run directory that is neither there nor among
    those `taken`. The working directory has to be the recipe's."""
    config = study.folder / "config.yaml"
    _, base = base_plan(study, recipe)
    if base.job.train is None:
        raise ConfigError("this job has no built-in task", where=str(config))
    settings = recipe.settings(measurement.first, base.job, base.job.train)
    while True:
        run_id = rundir.new_run_id()
        changes = [*recipe.overrides, *settings, runs_dir(study)]
        plan, loaded = prepare(config, changes, run_id=run_id)
        if plan.run_dir not in taken and not plan.run_dir.exists():
            return plan, loaded


def point_all(study: Study, measurement: Measurement, run_dir: Path) -> None:
    """Note the run directory in each point that it counts for. Raises UsageError."""
    for run in measurement.counts_for:
        study.point_to(run, run_dir)


def share_runs(study: Study, items: Sequence[Progress]) -> None:
    """Where one run counts for two, let both have it: a command that was killed may have come to
    the first one only. Raises UsageError."""
    for one in items:
        others = one.measurement.counts_for[1:]
        if one.run.run_dir is not None and any(
            study.run_dir(other) != one.run.run_dir for other in others
        ):
            point_all(study, one.measurement, one.run.run_dir)
