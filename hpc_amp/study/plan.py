"""Plan the runs of a scaling study from a job file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.folder import Submitting
from hpc_amp.campaigns.measuring import NO_RESTARTS, USUAL_STEPS, Measuring
from hpc_amp.campaigns.plan import CampaignPlan, plan_campaign
from hpc_amp.campaigns.points import Point, Space
from hpc_amp.campaigns.words import count, joined, on_nodes
from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText, LoadedJob, read_job
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.sites import site_of
from hpc_amp.errors import UsageError
from hpc_amp.study.batches import Batches, OwnBatch, own_batches
from hpc_amp.study.folder import KINDS, Kind

KEYS = ("job.nodes", "train.batch_size")
"""The keys that differ between the points of a task's study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options of `hpc-amp scale`."""

    kinds: tuple[Kind, ...]
    """Empty: strong, but weak for the user's own program if its batch is not known."""
    nodes: tuple[int, ...]
    repeats: int
    measuring: Measuring
    batch: OwnBatch | None = None
    in_allocation: bool = False
    arrays: bool = False


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A study, ready to be written and submitted."""

    plan: CampaignPlan
    options: StudyOptions
    settings: dict[Kind, tuple[int, ...]]
    """For each kind, the index of the setting for each number of nodes."""
    batches: dict[Kind, str]
    """For each kind, the batch that is the same for all numbers of nodes, as text."""

    @property
    def submitting(self) -> Submitting:
        """How the runs are submitted. Without a queue they are one job, because single jobs would
        run at the same time."""
        if self.options.in_allocation or self.plan.plan.scheduler.one_machine:
            return "one job"
        return "arrays" if self.options.arrays else "jobs"

    def facts(self) -> dict[str, Any]:
        """The options that the campaign records."""
        measuring = self.options.measuring
        return {
            "kinds": self.options.kinds,
            "nodes": self.options.nodes,
            "settings": self.settings,
            "warmup": measuring.warmup,
            "steps": measuring.steps,
            "seconds": measuring.seconds,
            "own_program": self.plan.plan.job.run is not None,
        }

    def describe(self) -> str:
        """The runs of the study and their measurements, as text."""
        options, measuring, plan = self.options, self.options.measuring, self.plan.plan
        nodes = joined([f"{number:,}" for number in options.nodes])
        kinds = joined(list(options.kinds))
        lines = [
            f"{self.plan.name}: {kinds} scaling on {nodes} node"
            f"{'' if options.nodes == (1,) else 's'}, {count(options.repeats, 'repeat')}, "
            f"site {plan.site.name}, {plan.launcher.name}",
            "; ".join(f"{kind}: {batch}" for kind, batch in self.batches.items()),
            measuring.describe(own_program=plan.job.run is not None),
        ]
        shared = [
            number
            for number, *settings in zip(options.nodes, *self.settings.values(), strict=True)
            if len(settings) > 1 and len(set(settings)) == 1
        ]
        if shared:
            lines.append(f"{kinds} share their runs {on_nodes(shared)}")
        return "\n  ".join(lines)


def plan_study(
    config: Path | JobText, overrides: Sequence[str], parent: Path, options: StudyOptions
) -> StudyPlan:
    """Plan a study, and check every point. Writes nothing to disk.

    Raises ConfigError if a point is wrong, or if the ranks cannot divide the batch, and UsageError
    if an option does not fit the job.
    """
    source = read_job(config, overrides)
    site = site_of(source)
    loaded = source.validate(site.defaults)
    job = loaded.job
    check_job(loaded, site)
    options = _with_defaults(options, job)
    if job.train is None:
        _refuse_options_of_tasks(options.measuring)
        batches = own_batches(loaded, options.kinds, options.nodes, options.batch)
        changes = list(NO_RESTARTS)
    else:
        _refuse_own_batch(options)
        batches = _batches(loaded, job.train, options)
        changes = options.measuring.overrides(job.train)
    values: list[tuple[str, ...]] = []
    settings: dict[Kind, list[int]] = {kind: [] for kind in options.kinds}
    for nodes in options.nodes:
        for kind in options.kinds:
            value = (str(nodes), *batches.values[kind, nodes])
            if value not in values:
                values.append(value)
            settings[kind].append(values.index(value))
    points = tuple(Point(index, value) for index, value in enumerate(values))
    space = Space(("job.nodes", *batches.keys), points, (*overrides, *changes))
    plan = plan_campaign(source.with_overrides(changes), space, parent, repeats=options.repeats)
    return StudyPlan(
        plan,
        options,
        {kind: tuple(numbers) for kind, numbers in settings.items()},
        {kind: batches.said[kind] for kind in KINDS if kind in options.kinds},
    )


def _with_defaults(options: StudyOptions, job: Job) -> StudyOptions:
    kinds, measuring = options.kinds, options.measuring
    if not kinds:
        kinds = ("weak",) if job.train is None and options.batch is None else ("strong",)
    if job.train is not None and measuring.steps is None and measuring.seconds is None:
        measuring = replace(measuring, steps=USUAL_STEPS)
    nodes = tuple(sorted(set(options.nodes)))
    return replace(options, kinds=kinds, nodes=nodes, measuring=measuring)


def _batches(loaded: LoadedJob, train: Train, options: StudyOptions) -> Batches:
    """The batches of a task. Raises ConfigError if the ranks cannot divide one."""
    job = loaded.job
    _check_batches(loaded, train, options)
    values = {
        (kind, nodes): (str(batch_size(kind, nodes, job, train)),)
        for kind in options.kinds
        for nodes in options.nodes
    }
    return Batches(
        KEYS[1:],
        values,
        {
            "strong": f"{count(train.batch_size, 'sample')} a step",
            "weak": f"{count(train.batch_size // job.world_size, 'sample')} a step and rank",
        },
    )


def _refuse_options_of_tasks(measuring: Measuring) -> None:
    if measuring.evaluate != "never" or measuring.checkpoints:
        raise UsageError(
            "--evaluate and --checkpoints are for tasks, and this job runs your own program",
            hint="leave them out: the program decides what it does",
        )


def _refuse_own_batch(options: StudyOptions) -> None:
    if options.batch is not None:
        raise UsageError(
            "--rank-batch and --global-batch are for your own program",
            hint="this job has a task, whose batch is train.batch_size",
        )


def batch_size(kind: Kind, nodes: int, job: Job, train: Train) -> int:
    """The global batch of a run: that of the job, or for weak scaling the same number of samples
    for each rank."""
    if kind == "strong":
        return train.batch_size
    return train.batch_size // job.world_size * job.ranks_per_node * nodes


def _check_batches(loaded: LoadedJob, train: Train, options: StudyOptions) -> None:
    """Refuse a batch for strong scaling that one of the numbers of ranks does not divide."""
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
    numbers = joined([str(nodes) for nodes in sorted(parts)])
    raise loaded.error(
        "train.batch_size",
        f"strong scaling divides the batch among the ranks, and {batch} is not divisible by the "
        f"{ranks} of {count(unfit[0], 'node')}",
        f"use {sizes}, which is divisible on {numbers} nodes, or --kind weak",
    )
