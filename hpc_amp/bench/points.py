"""From a configuration to the runs of a benchmark, and to the job that makes them."""

from __future__ import annotations

import dataclasses
import datetime
import os
import typing
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.bench.folder import Bench, PrecisionRun
from hpc_amp.campaigns.in_turn import (
    RunInTurn,
    next_allocation,
    render_campaign,
    submit_in_turn,
)
from hpc_amp.campaigns.lock import holding
from hpc_amp.config.paths import literal
from hpc_amp.config.schema import Precision
from hpc_amp.errors import ConfigError, HpcAmpError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import prepare
from hpc_amp.schedulers import Submission

USUAL = ("fp32", "tf32", "bf16", "fp16", "O2")


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedBench:
    """Runs of a benchmark that are ready to be made: nothing of them is on disk yet."""

    bench: Bench
    plans: dict[PrecisionRun, Plan]
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
) -> PreparedBench:
    """Validate every point. Touches nothing on disk. Raises ConfigError for what is wrong with one
    of them, and for a job without a built-in task."""
    given, loaded = prepare(config, overrides, site=site)
    if given.job.train is None:
        raise ConfigError(
            "bench compares precisions of a built-in task, and this job has none",
            where=loaded.where("run"),
            hint="write train: instead of run:",
        )
    gpus = given.job.resources.gpus_per_node > 0
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
        workdir=os.getcwd(),
        overrides=tuple(overrides),
        site=site,
    )
    return PreparedBench(bench, _plans(bench, config, bench.points, given), loaded.text)


def prepare_points(bench: Bench, points: Sequence[PrecisionRun]) -> PreparedBench:
    """Validate new runs for points of a benchmark that is there already. The working directory has
    to be the benchmark's. Raises ConfigError."""
    config = bench.folder / "config.yaml"
    given, loaded = prepare(config, bench.overrides, site=bench.site)
    return PreparedBench(bench, _plans(bench, config, points, given), loaded.text)


def _plans(
    bench: Bench, config: Path, points: Sequence[PrecisionRun], given: Plan
) -> dict[PrecisionRun, Plan]:
    """The plans of these points; `given` is that of the job as it was given."""
    plans: dict[PrecisionRun, Plan] = {}
    runs_dir = f"runs_dir={literal(str(bench.folder / 'runs'))}"
    train = given.job.train
    decays = train is not None and train.schedule.decay_after is not None
    # It may lie behind the last step that is measured.
    no_decay = ["train.schedule.decay_after=null"] if decays else []
    for point in points:
        settings = [*_measured(bench, point, first=not plans), *no_decay, runs_dir]
        changes = [*bench.overrides, *settings]
        run_id = _new_id(bench, {plan.run_dir.name for plan in plans.values()})
        plans[point], _ = prepare(config, changes, run_id=run_id, site=bench.site)
        render(plans[point])
    return plans


def _measured(bench: Bench, point: PrecisionRun, *, first: bool) -> list[str]:
    """What a point changes of the job: one precision, so many steps, and nothing beside them until
    the end, where it is evaluated once. `first`: it is the first one of its job."""
    total = bench.warmup + bench.steps
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


def _new_id(bench: Bench, taken: set[str]) -> str:
    there = bench.folder / "runs" / bench.name
    while (run_id := rundir.new_run_id()) in taken or (there / run_id).exists():
        pass
    return run_id


def start_bench(prepared: PreparedBench) -> Submission:
    """Make the folder of a new benchmark, and submit its runs. Where they are refused, nothing
    stays behind."""
    bench, plans = prepared.bench, prepared.plans
    try:
        run_dirs = {point: plan.run_dir for point, plan in plans.items()}
        bench.write(prepared.config_text, run_dirs)
        with holding(bench.description, "runs"):
            return submit_bench(prepared)
    except HpcAmpError:
        # What may be in the queue has kept its run directories.
        if not any(plan.run_dir.exists() for plan in plans.values()):
            rundir.discard(bench.folder)
        raise


def submit_bench(prepared: PreparedBench) -> Submission:
    """Make the run directories, and hand in the one job that makes all runs. The caller holds the
    benchmark. Where the job is refused, the points keep the runs that they had. Where the scheduler
    may have taken it all the same, everything stays, and `continue` looks for it (UnclearError)."""
    bench, plans = prepared.bench, prepared.plans
    before = {point: bench.run_dir(point) for point in plans}
    folder = next_allocation(bench.folder)
    try:
        for point, plan in plans.items():
            bench.point_to(point, plan.run_dir)
        return submit_in_turn(
            folder,
            render_bench(prepared, folder),
            [(plan, prepared.config_text) for plan in plans.values()],
            unclear=f"hpc-amp bench continue {bench.folder} looks for it",
        )
    except HpcAmpError:
        for point, plan in plans.items():
            if not plan.run_dir.exists():
                bench.point_to(point, before[point])
        raise


def render_bench(prepared: PreparedBench, folder: Path) -> str:
    """The script in `folder`: the job's directives, then the launch script of each point."""
    runs = [RunInTurn(point.precision, plan.run_dir) for point, plan in prepared.plans.items()]
    return render_campaign(
        prepared.first,
        folder,
        runs,
        what="a benchmark",
        group="precision",
        keep_checkpoints=False,
    )
