"""Plan the runs of a benchmark from a job file."""

from __future__ import annotations

import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_amp.campaigns.measuring import NO_RESTARTS, USUAL_STEPS, Measuring, whole_nodes
from hpc_amp.campaigns.plan import CampaignPlan, plan_campaign
from hpc_amp.campaigns.points import Point, Space, read_space
from hpc_amp.config.load import JobText, read_job
from hpc_amp.config.schema import Precision
from hpc_amp.config.site import Site
from hpc_amp.config.sites import HERE, site_of
from hpc_amp.errors import UsageError
from hpc_amp.schedulers import get_scheduler

USUAL = ("fp32", "tf32", "bf16", "fp16", "O2")
MODE = "train.precision.mode"
PRECISION_KEYS = (MODE, "train.precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of `hpc-amp bench`. `here`: use this machine instead of the site of the job."""

    precisions: Sequence[str] | None = None
    table: Path | None = None
    repeats: int
    warmup: int
    steps: int | None
    here: bool


def usual_precisions(gpus: bool) -> tuple[str, ...]:
    """The precisions that are compared by default. TF32 exists only on GPUs."""
    known = typing.get_args(typing.get_type_hints(Precision)["mode"])
    return tuple(name for name in USUAL if name in known and (gpus or name != "tf32"))


def plan_bench(
    config: Path | JobText, overrides: Sequence[str], parent: Path, options: BenchOptions
) -> CampaignPlan:
    """Plan a benchmark, and validate every point. Writes nothing to disk. Raises ConfigError if a
    point is wrong, and UsageError if an option does not fit the job."""
    space = read_space(overrides, table=options.table, must_vary=False)
    if options.here:
        space = replace(space, fixed=(*space.fixed, f"site={HERE}"))
    source = read_job(config, space.fixed)
    site = site_of(source)
    loaded = source.validate(site.defaults)
    if loaded.job.train is None:
        if options.precisions is not None:
            raise UsageError(
                "--precisions sets a key of a task, and this job runs your own program",
                hint="vary an argument of the program: -- --precision=fp32,bf16",
            )
        changes = [*NO_RESTARTS, *whole_nodes(loaded.job, site)]
        space = replace(space, fixed=(*space.fixed, *changes))
        return plan_campaign(source.with_overrides(changes), space, parent, repeats=options.repeats)
    steps = options.steps or USUAL_STEPS
    measuring = Measuring(warmup=options.warmup, steps=steps, evaluate="at the end")
    changes = [*measuring.overrides(loaded.job.train), *whole_nodes(loaded.job, site)]
    precisions = options.precisions or usual_precisions(loaded.job.resources.gpus_per_node > 0)
    space = with_precisions(space, precisions, asked=options.precisions is not None)
    space = replace(space, fixed=(*space.fixed, *changes))
    return plan_campaign(source.with_overrides(changes), space, parent, repeats=options.repeats)


def busy_site(config: Path | JobText, overrides: Sequence[str], table: Path | None) -> Site | None:
    """The site of the job, if this machine seems to be one of its login nodes: the site has a
    scheduler, and this is not a job of it. Otherwise None. Raises ConfigError and UsageError."""
    source = read_job(config, read_space(overrides, table=table, must_vary=False).fixed)
    site = site_of(source)
    scheduler = get_scheduler(site.scheduler)
    if scheduler.one_machine or scheduler.allocation in os.environ:
        return None
    return site


def with_precisions(space: Space, precisions: Sequence[str], *, asked: bool) -> Space:
    """Each point of `space` in each of the precisions; `space` itself if it sets the precision.
    Raises UsageError if it does, and the user has also `asked` for precisions."""
    fixed = [override.partition("=")[0] for override in space.fixed]
    given = next((key for key in PRECISION_KEYS if key in (*space.keys, *fixed)), None)
    if given is not None and asked:
        raise UsageError(
            f"--precisions sets {MODE}, and {given} is also given", hint="give only one of them"
        )
    if given is not None:
        return space
    values = [
        (point.where, (precision, *point.values))
        for precision in dict.fromkeys(precisions)
        for point in space.points
    ]
    points = tuple(Point(index, one, where) for index, (where, one) in enumerate(values))
    return Space((MODE, *space.keys), points, space.fixed)
