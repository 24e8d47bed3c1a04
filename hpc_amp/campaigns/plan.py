"""Plan a campaign from a job file and points: a resolved job for each point, and one launch script
for all points with the same request to the scheduler."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.folder import Group, repeated, run_name
from hpc_amp.campaigns.points import SEED, Point, Space, with_seeds
from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobSource, LoadedJob
from hpc_amp.config.paths import as_overrides, paths_in
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.site import Site
from hpc_amp.config.sites import site_of
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs.plan import Plan, absolute_path, make_plan, origins_of
from hpc_amp.jobs.render import render
from hpc_amp.jobs.rundir import new_run_id, resolved


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Points with the same request to the scheduler, so that one array can contain them."""

    plan: Plan
    """The plan of point 0000. Its name in the script is replaced by that of the actual point."""
    points: tuple[int, ...]

    def launch_script(self) -> str:
        """The launch script of point 0000."""
        return render(self.plan)

    def described(self, script: str) -> Group:
        """The group as the campaign's description contains it; `script` is its launch script."""
        plan, job = self.plan, self.plan.job
        # The header is for a script in the campaign's folder, with a log in this folder.
        header = plan.scheduler.directives(replace(plan, run_dir=plan.run_dir.parents[1]))
        return Group(
            script=script,
            directives=tuple(header),
            points=self.points,
            nodes=job.resources.nodes,
            gpus=job.resources.gpus_per_node,
            cores=job.cpus_per_node,
            tasks_per_node=plan.tasks_per_node,
            walltime=plan.walltime,
            stop_margin=plan.stop_margin,
        )


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """A campaign, ready to be written and submitted."""

    folder: Path
    config_text: str
    space: Space
    repeats: int
    jobs: tuple[str, ...]
    """`job.json` of every point, each as one line."""
    groups: tuple[PlannedGroup, ...]

    @property
    def plan(self) -> Plan:
        """The plan of the first group, for settings that all groups share."""
        return self.groups[0].plan

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.plan.job.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user, one line each."""
        if not any(group.plan.job.resources.chain for group in self.groups):
            return self.plan.remarks
        chain = "job.chain is not used here: `continue` resumes runs that have stopped"
        return (*self.plan.remarks, chain)


def plan_campaign(
    source: JobSource, space: Space, parent: Path, *, repeats: int = 1
) -> CampaignPlan:
    """Validate every point, and group the points that can share a script. Writes nothing to disk.

    The overrides of `source` are those of `space` that hold for all points. The folder of the
    campaign will be below `parent`. Raises ConfigError for the first point that is wrong.
    """
    site = site_of(source)
    planner = _Planner(parent, site)
    points = repeated(space.points, repeats)
    for setting in space.points:
        try:
            loaded = _load(source, setting.settings(space.keys), site)
            for point in points[setting.index :: len(space.points)]:
                planner.add(point, loaded)
        except ConfigError as error:
            raise _in_point(error, setting, space) from None
    jobs = tuple(planner.jobs[point.index] for point in points)
    every_run = replace(space, points=points)
    return CampaignPlan(planner.folder, source.text, every_run, repeats, jobs, planner.groups())


def with_repeats(source: JobSource, space: Space, repeats: int) -> Space:
    """Each setting with `repeats` seeds, counted from the seed of the job. Raises UsageError if the
    job runs the user's program, which has no `train.seed`, and ConfigError if the job is wrong."""
    train = source.validate(site_of(source).defaults).job.train
    if train is None:
        raise UsageError(
            f"--repeats sets {SEED}, and this job runs your own program",
            hint="vary an environment variable that the program reads: container.env.SEED=0,1,2",
        )
    return with_seeds(space, range(train.seed, train.seed + repeats))


def _load(source: JobSource, settings: Sequence[str], site: Site) -> LoadedJob:
    loaded = source.with_overrides(settings).validate(site.defaults)
    check_job(loaded, site)
    return loaded


def _in_point(error: ConfigError, point: Point, space: Space) -> ConfigError:
    place = point.where or f"point {point.index}"
    settings = " ".join(point.settings(space.keys))
    return ConfigError(f"{error.message} ({place}: {settings})", where=error.where, hint=error.hint)


class _Planner:
    """Plans each group once. The other points of a group take most of the first point's plan."""

    def __init__(self, parent: Path, site: Site) -> None:
        self._parent = Path(os.path.expanduser(parent)).resolve()
        self._site = site
        self._id = new_run_id()
        self._plans: dict[str, Plan] = {}
        self._common: dict[str, dict[str, Any]] = {}
        self._points: dict[str, list[int]] = {}
        self._expanded: dict[str, set[str]] = {}
        self._absolute = functools.cache(absolute_path)
        self.folder = self._parent
        self.jobs: dict[int, str] = {}

    def add(self, point: Point, loaded: LoadedJob) -> None:
        """Add a point."""
        key = repr(_what_scripts_depend_on(loaded.job))
        if key not in self._plans:
            self.folder = self._parent / loaded.job.name / self._id  # of all points
            plan = make_plan(loaded, self._site, Path(self._run_dir(0)))
            plan = _with_campaign_visible(plan, self.folder)
            plan.scheduler.check(replace(plan, run_dir=self.folder))
            self._plans[key] = plan
            self._common[key] = resolved(plan)
            self._expanded[key] = set(plan.expanded)
        self._expanded[key] &= {*map(str, (*self._site.expanded, *loaded.expanded))}
        self._points.setdefault(key, []).append(point.index)
        run_dir = self._run_dir(point.index)
        content = _resolved_point(
            self._plans[key], self._common[key], loaded, run_dir, self._absolute
        )
        self.jobs[point.index] = json.dumps(content, default=_fields_of)

    def _run_dir(self, index: int) -> str:
        return f"{self.folder}/points/{run_name(index)}"

    def groups(self) -> tuple[PlannedGroup, ...]:
        """All groups, in the order of their first points."""
        return tuple(
            PlannedGroup(self._shared(key), tuple(sorted(self._points[key]))) for key in self._plans
        )

    def _shared(self, key: str) -> Plan:
        """The plan of a group. Its script only names expanded paths that all points share."""
        plan = self._plans[key]
        shared = tuple(line for line in plan.expanded if line in self._expanded[key])
        return replace(plan, expanded=shared)


def _what_scripts_depend_on(job: Job) -> tuple[Any, ...]:
    """All settings of a job except those that are only in job.json: the training, the command and
    the environment."""
    return (
        job.resources,
        replace(job.container, env={}),
        job.launch,
        job.restarts,
        _folders(job.train) if job.train is not None else None,
        job.run is None,
    )


def _folders(train: Train) -> list[str]:
    """The files and folders of a task that its container must see."""
    return sorted(
        {
            os.path.dirname(path) if key.is_first_weights and not os.path.isdir(path) else path
            for _, key, path in paths_in(train)
        }
    )


def _with_campaign_visible(plan: Plan, folder: Path) -> Plan:
    """A point's `src` is a link to the copy that all points share, so a container needs to see the
    campaign's folder."""
    bind = [*plan.job.container.bind, str(folder)]
    container = replace(plan.job.container, bind=bind)
    return replace(plan, job=replace(plan.job, container=container))


def _resolved_point(
    plan: Plan,
    common: dict[str, Any],
    loaded: LoadedJob,
    run_dir: str,
    absolute: Callable[[str, Path], str],
) -> dict[str, Any]:
    """`jobs.rundir.resolved` for another point of the plan's group: `common`, with the training,
    command, environment and paths of the point. `absolute` is `jobs.plan.absolute_path`."""
    job = loaded.job
    train = None if job.train is None else _with_absolute_paths(job.train, plan, absolute)
    env = {**plan.fabric_env, **plan.site.env, **job.container.env}
    container = {**common["job"]["container"], "env": env}
    return {
        **common,
        "run_dir": run_dir,
        "overrides": [*loaded.overrides, *as_overrides(loaded.job, loaded.expanded)],
        "origins": origins_of(loaded, plan.site, plan.fabric),
        "workdir": f"{run_dir}/code" if job.code is not None else common["workdir"],
        "job": {**common["job"], "train": train, "run": job.run, "container": container},
    }


def _with_absolute_paths(
    train: Train, plan: Plan, absolute: Callable[[str, Path], str]
) -> dict[str, Any]:
    """The fields of a training with absolute paths. The sections in it stay as they are, except
    those with a path: a new section for each path would take longer."""
    content = _fields_of(train)
    for where, _, path in paths_in(train):
        *sections, name = where.split(".")
        fields_there = content
        for section in sections:
            if not isinstance(fields_there[section], dict):
                fields_there[section] = _fields_of(fields_there[section])
            fields_there = fields_there[section]
        fields_there[name] = absolute(path, plan.submitted_from)
    return content


def _fields_of(section: Any) -> dict[str, Any]:
    """A section of a job as a dictionary for JSON, without keys that its task does not use. Much
    faster than `dataclasses.asdict`, which copies all values."""
    kind: type = type(section)
    return {name: getattr(section, name) for name in _names_of(kind)}


@functools.cache
def _names_of(section: type[Any]) -> tuple[str, ...]:
    """The fields of a section that its task uses."""
    unused = getattr(section, "UNUSED", ())
    return tuple(field.name for field in fields(section) if field.name not in unused)
