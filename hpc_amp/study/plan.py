"""Plan the runs of a scaling study from a job file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.folder import Submitting
from hpc_amp.campaigns.measuring import NO_RESTARTS, USUAL_STEPS, Measuring, whole_nodes
from hpc_amp.campaigns.plan import CampaignPlan, plan_campaign
from hpc_amp.campaigns.points import Point, Space
from hpc_amp.campaigns.words import count, joined, on_nodes
from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText, LoadedJob, read_job
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.site import Site
from hpc_amp.config.sites import site_of
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.finding import Finding
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.base import Client
from hpc_amp.study.batches import Batches, OwnBatch, own_batches
from hpc_amp.study.folder import KINDS, Kind

KEYS = ("job.nodes", "train.batch_size")
"""The keys that differ between the points of a task's study."""
DEFAULT_NODES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options of `hpc-amp scale`."""

    kinds: tuple[Kind, ...]
    """Empty: strong, but weak for the user's own program if its batch is not known."""
    nodes: tuple[int, ...] | None
    """None: `DEFAULT_NODES`, as far as the scheduler's limits allow them."""
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
    nodes: tuple[int, ...]
    left_out: tuple[str, ...]
    """Why some of `DEFAULT_NODES` are not measured, one line each."""
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
            "nodes": self.nodes,
            "settings": self.settings,
            "warmup": measuring.warmup,
            "steps": measuring.steps,
            "seconds": measuring.seconds,
            "own_program": self.plan.plan.job.run is not None,
        }

    def describe(self) -> str:
        """The runs of the study and their measurements, as text."""
        options, measuring, plan = self.options, self.options.measuring, self.plan.plan
        nodes = joined([f"{number:,}" for number in self.nodes])
        kinds = joined(list(options.kinds))
        lines = [
            f"{self.plan.name}: {kinds} scaling on {nodes} node"
            f"{'' if self.nodes == (1,) else 's'}, {count(options.repeats, 'repeat')}, "
            f"site {plan.site.name}, {plan.launcher.name}",
            "; ".join(f"{kind}: {batch}" for kind, batch in self.batches.items()),
            measuring.describe(own_program=plan.job.run is not None),
        ]
        shared = [
            number
            for number, *settings in zip(self.nodes, *self.settings.values(), strict=True)
            if len(settings) > 1 and len(set(settings)) == 1
        ]
        if shared:
            lines.append(f"{kinds} share their runs {on_nodes(shared)}")
        lines += self.left_out
        return "\n  ".join(lines)


def plan_study(
    config: Path | JobText,
    overrides: Sequence[str],
    parent: Path,
    options: StudyOptions,
    client: Client | None = None,
) -> StudyPlan:
    """Plan a study, and check every point. Writes nothing to disk. With `client`, no number of
    nodes is planned that the scheduler's limits do not allow.

    Raises ConfigError if a point is wrong, if the limits do not allow a given number of nodes, or
    if the ranks cannot divide the batch, and UsageError if an option does not fit the job.
    """
    source = read_job(config, overrides)
    site = site_of(source)
    loaded = source.validate(site.defaults)
    job = loaded.job
    check_job(loaded, site)
    options = _with_defaults(options, job)
    numbers, left_out = _choose_nodes(job, site, options, client)
    if job.train is None:
        _refuse_options_of_tasks(options.measuring)
        batches = own_batches(loaded, options.kinds, numbers, options.batch)
        changes = [*NO_RESTARTS, *whole_nodes(job, site)]
    else:
        _refuse_own_batch(options)
        batches = _batches(loaded, job.train, options.kinds, numbers)
        changes = [*options.measuring.overrides(job.train), *whole_nodes(job, site)]
    values: list[tuple[str, ...]] = []
    settings: dict[Kind, list[int]] = {kind: [] for kind in options.kinds}
    for nodes in numbers:
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
        numbers,
        left_out,
        {kind: tuple(indices) for kind, indices in settings.items()},
        {kind: batches.said[kind] for kind in KINDS if kind in options.kinds},
    )


def _with_defaults(options: StudyOptions, job: Job) -> StudyOptions:
    kinds, measuring = options.kinds, options.measuring
    if not kinds:
        kinds = ("weak",) if job.train is None and options.batch is None else ("strong",)
    if job.train is not None and measuring.steps is None and measuring.seconds is None:
        measuring = replace(measuring, steps=USUAL_STEPS)
    return replace(options, kinds=kinds, measuring=measuring)


def _batches(
    loaded: LoadedJob, train: Train, kinds: Sequence[Kind], numbers: Sequence[int]
) -> Batches:
    """The batches of a task. Raises ConfigError if the ranks cannot divide one."""
    job = loaded.job
    _check_batches(loaded, train, kinds, numbers)
    values = {
        (kind, nodes): (str(batch_size(kind, nodes, job, train)),)
        for kind in kinds
        for nodes in numbers
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


def _choose_nodes(
    job: Job, site: Site, options: StudyOptions, client: Client | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers of nodes to measure, and why some of the default ones are left out. If one job
    makes all runs, it requests the largest number: limits do not matter for the smaller ones."""
    given = options.nodes
    wanted = tuple(sorted(set(given or DEFAULT_NODES)))
    if client is None:
        return wanted, ()
    scheduler = get_scheduler(site.scheduler)
    refused: dict[int, Finding] = {}
    for nodes in reversed(wanted):
        resources = replace(job.resources, nodes=nodes)
        for finding in scheduler.check_limits(replace(job, resources=resources), site, client):
            if finding.severity == "error":
                refused.setdefault(nodes, finding)
        if options.in_allocation and nodes not in refused:
            break
    refused = dict(sorted(refused.items()))
    possible = tuple(nodes for nodes in wanted if nodes not in refused)
    if refused and (given is not None or not possible):
        first = next(iter(refused.values()))
        fix = f"use --nodes {','.join(map(str, possible))}" if possible else first.fix
        raise ConfigError(first.what, hint=f"{fix} (--no-check submits the runs all the same)")
    left_out = [
        f"{count(nodes, 'node')} left out: {finding.what}" for nodes, finding in refused.items()
    ]
    return possible, tuple(left_out)


def _check_batches(
    loaded: LoadedJob, train: Train, kinds: Sequence[Kind], numbers: Sequence[int]
) -> None:
    """Refuse a batch for strong scaling that one of the numbers of ranks does not divide."""
    if "strong" not in kinds:
        return
    batch = train.batch_size
    parts = {nodes: nodes * loaded.job.ranks_per_node * train.accumulate for nodes in numbers}
    unfit = [nodes for nodes, part in sorted(parts.items()) if batch % part]
    if not unfit:
        return
    step = math.lcm(*parts.values())
    below = batch // step * step
    sizes = f"{below} or {below + step}" if below else f"{step}"
    ranks = f"{parts[unfit[0]] // train.accumulate} ranks"
    if train.accumulate > 1:
        ranks += f" x {train.accumulate} parts"
    shown = joined([str(nodes) for nodes in sorted(parts)])
    raise loaded.error(
        "train.batch_size",
        f"strong scaling divides the batch among the ranks, and {batch} is not divisible by the "
        f"{ranks} of {count(unfit[0], 'node')}",
        f"use {sizes}, which is divisible on {shown} nodes, or --kind weak",
    )
