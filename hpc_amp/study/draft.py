"""From a job file to a study that is checked, and not on disk yet."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.words import count, joined
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.paths import as_overrides, literal
from hpc_amp.config.schema import Train
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import prepare
from hpc_amp.study.folder import KINDS, Kind, Study
from hpc_amp.study.recipe import Recipe, measurements, write_description


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options of `hpc-amp scale`. Exactly one of `steps` and `seconds` is None."""

    kinds: tuple[Kind, ...]
    nodes: tuple[int, ...]
    repeats: int
    warmup: int
    steps: int | None
    seconds: float | None
    evaluate: bool = False
    checkpoints: bool = False
    in_allocation: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A study that is ready to be made."""

    study: Study
    recipe: Recipe
    plan: Plan
    """Of the job as it is."""
    config_text: str
    batches: dict[Kind, str]
    """In words, what stays the same on all numbers of nodes."""

    def write(self) -> None:
        """Make the folder, with nothing submitted. Raises UsageError where that is not possible;
        nothing stays behind then."""
        folder = self.study.folder
        try:
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(self.config_text)
            write_description(self.study, self.recipe)
        except OSError as error:
            rundir.discard(folder)
            raise UsageError(f"{folder} cannot be made: {error.strerror}") from None
        except UsageError:
            rundir.discard(folder)
            raise


def draft_study(
    config: Path, overrides: Sequence[str], studies_dir: Path, options: StudyOptions
) -> Draft:
    """Check every point of a study. Touches nothing on disk.

    Raises ConfigError for what is wrong with one of them, for a batch that the nodes cannot share,
    and for a job without a built-in task.
    """
    plan, loaded = prepare(config, overrides)
    job = loaded.job
    if job.train is None:
        raise ConfigError(
            "scale measures a built-in task, and this job has none",
            where=loaded.where("run"),
            hint="write train: instead of run:",
        )
    _check_batches(loaded, job.train, options)
    now = datetime.datetime.now(datetime.timezone.utc)
    nodes = tuple(sorted(set(options.nodes)))
    study = Study(
        folder=studies_dir.expanduser().resolve() / job.name / rundir.new_run_id(),
        name=job.name,
        kinds=options.kinds,
        nodes=nodes,
        repeats=options.repeats,
        created=f"{now:%Y-%m-%d %H:%M:%S} UTC",
        shared=tuple(n for n in nodes if options.kinds == KINDS and n == job.resources.nodes),
    )
    site = plan.site.name if job.site == "auto" else job.site
    recipe = Recipe(
        workdir=str(Path.cwd()),
        overrides=(*overrides, *as_overrides(job, loaded.expanded), f"site={literal(site)}"),
        warmup=options.warmup,
        steps=options.steps,
        seconds=options.seconds,
        evaluate=options.evaluate,
        checkpoints=options.checkpoints,
        # A machine without a queue would start them all at once.
        in_allocation=options.in_allocation or plan.scheduler.one_machine,
    )
    if options.in_allocation and not plan.scheduler.narrows():
        raise UsageError(
            f"--in-allocation: {plan.scheduler.title} cannot give a run a part of a job's nodes",
            hint="leave it out: then each run is a job of its own",
        )
    for measurement in measurements(study):
        if measurement.first.repeat == 1:
            settings = recipe.settings(measurement.first, job, job.train)
            render(prepare(config, [*recipe.overrides, *settings, runs_dir(study)])[0])
    batches: dict[Kind, str] = {
        "strong": f"{count(job.train.batch_size, 'sample')} a step",
        "weak": f"{count(job.train.batch_size // job.world_size, 'sample')} a step and rank",
    }
    return Draft(study, recipe, plan, loaded.text, {kind: batches[kind] for kind in study.kinds})


def runs_dir(study: Study) -> str:
    """The override that has runs in the study's folder."""
    return f"runs_dir={literal(str(study.folder / 'runs'))}"


def _check_batches(loaded: LoadedJob, train: Train, options: StudyOptions) -> None:
    """With strong scaling one batch is divided among every number of ranks."""
    if "strong" not in options.kinds:
        return
    batch = train.batch_size
    parts = {nodes: nodes * loaded.job.ranks_per_node * train.accumulate for nodes in options.nodes}
    unfit = [nodes for nodes, part in sorted(parts.items()) if batch % part]
    if not unfit:
        return
    step = math.lcm(*parts.values())
    below = batch // step * step
    sizes = f"{below} or {below + step}" if below else f"{step}"
    ranks = f"{parts[unfit[0]] // train.accumulate} ranks"
    if train.accumulate > 1:
        ranks += f" x {train.accumulate} parts"
    told = joined([str(nodes) for nodes in sorted(parts)])
    raise loaded.error(
        "train.batch_size",
        f"strong scaling divides it, and {batch} does not divide by the {ranks} of "
        f"{count(unfit[0], 'node')}",
        f"use {sizes}, which {told} nodes divide, or --kind weak",
    )
