"""From a configuration to the runs of a benchmark, and to the job that makes them."""

from __future__ import annotations

import dataclasses
import datetime
import os
import typing
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.bench.folder import Bench, Point
from hpc_amp.campaigns.script import RunInTurn, render_campaign
from hpc_amp.config.paths import literal
from hpc_amp.config.schema import Precision
from hpc_amp.errors import ConfigError, HpcAmpError, UnclearError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import prepare, waiting_for
from hpc_amp.jobs.unsettled import or_found
from hpc_amp.schedulers import Submission

USUAL = ("fp32", "tf32", "bf16", "fp16", "O2")


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A benchmark that is ready to be made: nothing is on disk yet."""

    bench: Bench
    plans: dict[Point, Plan]
    config_text: str

    @property
    def first(self) -> Plan:
        """The plan of the first point; all have the same resources."""
        return next(iter(self.plans.values()))


def usual_precisions(gpus: bool) -> tuple[str, ...]:
    """What is compared unless somebody says what: TF32 is a mode of GPUs."""
    known = typing.get_args(typing.get_type_hints(Precision)["mode"])
    return tuple(name for name in USUAL if name in known and (gpus or name != "tf32"))


def prepare_bench(
    config: Path,
    overrides: Sequence[str],
    benches_dir: Path,
    *,
    precisions: Sequence[str] | None,
    repeats: int,
    warmup: int,
    steps: int,
    site: str | None,
) -> Prepared:
    """Validate every point. Touches nothing on disk. Raises ConfigError for what is wrong with one
    of them, and for a job without a built-in task."""
    given, loaded = prepare(config, overrides, site=site)
    if given.job.train is None:
        raise ConfigError(
            "bench compares precisions of a built-in task, and this job has none",
            where=loaded.where("run"),
            hint="write train: instead of run:",
        )
    gpus = given.job.job.gpus_per_node > 0
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = benches_dir.expanduser().resolve() / given.job.name / rundir.new_run_id()
    bench = Bench(
        folder=folder,
        name=given.job.name,
        precisions=tuple(dict.fromkeys(precisions or usual_precisions(gpus))),
        repeats=repeats,
        warmup=warmup,
        steps=steps,
        created=f"{now:%Y-%m-%d %H:%M:%S} UTC",
        gpus=gpus,
    )
    plans: dict[Point, Plan] = {}
    for point in bench.points:
        changes = [*_measured(bench, point), f"runs_dir={literal(str(folder / 'runs'))}"]
        run_id = _new_id({plan.run_dir.name for plan in plans.values()})
        plans[point], _ = prepare(config, [*overrides, *changes], run_id=run_id, site=site)
        render(plans[point])
    return Prepared(bench, plans, loaded.text)


def _measured(bench: Bench, point: Point) -> list[str]:
    """What a point changes of the job: one precision, so many steps, and nothing beside them until
    the end, where it is evaluated once."""
    total = bench.warmup + bench.steps
    first = point == bench.points[0]
    return [
        f"train.precision.mode={point.precision}",
        f"train.timing.warmup={bench.warmup}",
        f"train.timing.steps={bench.steps}",
        "train.timing.seconds=null",
        "train.profile=null",
        f"train.max_steps={total}",
        f"train.epochs={total}",
        f"train.evaluate_every={total + 1}",
        f"train.log_every={total}",
        f"train.checkpoint.every={total + 1}steps",
        "train.checkpoint.keep_best=0",
        "train.checkpoint.keep_every=null",
        "train.checkpoint.background=false",
        "job.max_restarts=0",
        "job.chain=0",
        "restarts.on_failure=0",
        *([] if first else ["launch.preflight=false"]),  # the nodes are the same ones
    ]


def _new_id(taken: set[str]) -> str:
    while (run_id := rundir.new_run_id()) in taken:
        pass
    return run_id


def submit_bench(prepared: Prepared) -> Submission:
    """Make the folder and all run directories, and hand in the one job that runs all points. Where
    that is refused, nothing stays behind. Where the scheduler may have taken it all the same, all
    stays, and `status` of a run looks for the job (UnclearError)."""
    bench, plans = prepared.bench, prepared.plans
    run_dirs = {point: plan.run_dir for point, plan in plans.items()}
    scheduler, folder = prepared.first.scheduler, bench.folder
    taken = False
    try:
        bench.write(prepared.config_text, render_bench(prepared), run_dirs)
        for plan in plans.values():
            rundir.create(plan, render(plan), prepared.config_text)
        with waiting_for(scheduler):
            for plan in plans.values():
                record_event(
                    plan.run_dir, "submitted", scheduler=scheduler.name, folder=str(folder)
                )
            submission = or_found(
                lambda: scheduler.submit(bench.script, os.environ), scheduler.name, folder, ()
            )
            taken = True
            for plan in plans.values():
                record_event(plan.run_dir, "queued", job_id=submission.job_id)
    except UnclearError as error:
        raise UnclearError(
            f"{error.message}; whether the job is in the queue is not known, and {folder} stays"
        ) from None
    except HpcAmpError:
        # A job that is in the queue keeps its folders, though the disk does not take its id.
        if not taken:
            rundir.discard(folder)
        raise
    return submission


def render_bench(prepared: Prepared) -> str:
    """The script: the job's directives, then the launch script of each point."""
    runs = [RunInTurn(point.precision, plan.run_dir) for point, plan in prepared.plans.items()]
    return render_campaign(
        prepared.first,
        prepared.bench.folder,
        runs,
        what="a benchmark",
        group="precision",
        keep_checkpoints=False,
    )
