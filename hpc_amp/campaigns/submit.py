"""Write the folder of a campaign, and submit the campaign."""

from __future__ import annotations

import datetime
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.folder import Campaign, Group, Submitting, write_description
from hpc_amp.campaigns.parts import Part, arrays_of, cut, render_part
from hpc_amp.campaigns.plan import CampaignPlan
from hpc_amp.campaigns.record import (
    Submitted,
    read_submitted,
    record_accepted,
    record_queued,
    record_submitted,
)
from hpc_amp.campaigns.snapshot import write_snapshot
from hpc_amp.campaigns.status import UNDER_WAY, PointStatus, point_statuses
from hpc_amp.campaigns.view import View
from hpc_amp.campaigns.views import view_of
from hpc_amp.campaigns.words import count, joined
from hpc_amp.errors import HpcAmpError, SchedulerError, UnclearError, UsageError, to_type
from hpc_amp.jobs import rundir
from hpc_amp.jobs.git import record_code_state
from hpc_amp.jobs.known import remember
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.submit import waiting_for
from hpc_amp.schedulers import Scheduler, get_scheduler
from hpc_amp.schedulers.base import UnreachableError
from hpc_amp.signals import INTERRUPTING

POLL_SECONDS = 10.0


def describe(
    view: View,
    plan: CampaignPlan,
    *,
    submitting: Submitting = "arrays",
    at_once: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Campaign:
    """The campaign of a plan, for `write`. `at_once` limits how many points run at the same time,
    and `options` are values that only the view needs. Raises UsageError if the scheduler has no
    such limit, or cannot make all runs in one job."""
    scheduler = plan.plan.scheduler
    if submitting == "one job":
        _check_one_job(scheduler, plan)
    campaign = Campaign(
        folder=plan.folder,
        view=view.name,
        name=plan.name,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        site=plan.plan.site.name,
        scheduler=scheduler.name,
        fixed=plan.space.fixed,
        keys=plan.space.keys,
        points=plan.space.points,
        repeats=plan.repeats,
        groups=tuple(
            group.described(_script_name(index)) for index, group in enumerate(plan.groups)
        ),
        submitting=submitting,
        resumes=view.resumes,
        at_once=at_once,
        own_code=plan.plan.job.code is not None,
        options=options or {},
    )
    check_bound(campaign, at_once)
    return campaign


def _check_one_job(scheduler: Scheduler, plan: CampaignPlan) -> None:
    """Raise UsageError if one job cannot make all runs of a plan."""
    plans = [group.plan for group in plan.groups]
    if len({one.job.resources.nodes for one in plans}) > 1 and not scheduler.narrows():
        raise UsageError(
            f"{scheduler.title} cannot give a run a part of a job's nodes",
            hint="leave --in-allocation out: then each run is a job of its own",
        )
    if scheduler.one_machine:
        return  # the runs request nothing from a scheduler
    different = _differences_on_a_node(plans)
    if different:
        raise UsageError(
            "runs that share a job may differ in job.nodes, but not in what they ask of a node: "
            f"{joined(different)}",
            hint="submit the runs as jobs of their own, or start a campaign for each",
        )


def _differences_on_a_node(plans: Sequence[Plan]) -> list[str]:
    """What differs between runs apart from their numbers of nodes, in the requests to the
    scheduler: keys, or what the launchers need."""
    keys = [field.name for field in fields(plans[0].job.resources) if field.name != "nodes"]
    different = []
    for key in keys:
        if len({repr(getattr(one.job.resources, key)) for one in plans}) > 1:
            different.append(f"job.{key}")
    if different:
        return different
    # `auto` may choose a launcher for one node and another one for several nodes, which works: the
    # job has what the largest of its runs requests.
    methods = {one.job.launch.method for one in plans}
    processes = sorted({one.tasks_per_node for one in plans})
    if len(methods) > 1 and len(processes) > 1:
        started = joined([str(number) for number in processes])
        return [f"their launchers start {started} processes on a node (launch.method)"]
    return []


def check_bound(campaign: Campaign, at_once: int | None) -> None:
    """Raise UsageError if `at_once` is given, but the campaign is submitted without arrays."""
    if at_once is not None and not arrays_of(campaign).bounds:
        raise UsageError(
            f"--max-parallel needs arrays, and {campaign.scheduler} has none here",
            hint="leave it out: the queue has a limit of its own",
        )


def _script_name(index: int) -> str:
    return "launch.sh" if index == 0 else f"launch-{index + 1}.sh"


def write(campaign: Campaign, plan: CampaignPlan) -> None:
    """Create the campaign's folder with everything that its points need. If it cannot be written,
    it is removed, and UsageError is raised."""
    scripts = [group.launch_script() for group in plan.groups]
    try:
        campaign.folder.mkdir(parents=True)
        try:
            (campaign.folder / "logs").mkdir()
            (campaign.folder / "config.yaml").write_text(plan.config_text)
            (campaign.folder / "jobs.jsonl").write_text("".join(f"{job}\n" for job in plan.jobs))
            for group, script in zip(campaign.groups, scripts, strict=True):
                (campaign.folder / group.script).write_text(script)
            write_snapshot(campaign.folder, [group.plan for group in plan.groups])
            record_code_state(plan.plan, campaign.folder, campaign.folder.parents[1])
            write_description(campaign)
        except BaseException:
            rundir.discard(campaign.folder)
            raise
        remember(campaign.folder.parents[1])
    except OSError as error:
        raise UsageError(
            f"the folder {campaign.folder} cannot be written: {rundir.why_not_written(error)}",
            hint=f"{view_of(campaign.view).parent_option} names another one",
        ) from None


def parts_of(
    campaign: Campaign,
    wanted: Collection[int],
    at_once: int | None,
    before: Sequence[PointStatus] = (),
) -> list[Part]:
    """The parts of a submission of the `wanted` points, of which there is one at least.

    `at_once` limits how many points of the campaign run at the same time. `before` are the present
    statuses: what earlier arrays may run is subtracted from the limit. Raises UsageError if the
    limit leaves less than one point for each new array.
    """
    numbers = [submitted.number for submitted in read_submitted(campaign)]
    return cut(
        campaign,
        wanted,
        largest=arrays_of(campaign).largest(),
        first_number=max(numbers, default=0) + 1,
        at_once=at_once,
        in_use=_may_run(campaign, before),
    )


def _may_run(campaign: Campaign, statuses: Sequence[PointStatus]) -> int:
    """How many points the jobs of earlier submissions may run at the same time."""
    newest: dict[int, Submitted] = {}
    for one in read_submitted(campaign):
        if not one.was_refused:
            newest |= dict.fromkeys(one.points, one)
    under_way = [s.index for s in statuses if s.state in UNDER_WAY and s.index in newest]
    open_points = Counter(newest[index] for index in under_way)
    return sum(
        number if one.at_once is None else min(number, one.at_once)
        for one, number in open_points.items()
    )


def write_script(campaign: Campaign, part: Part) -> Path:
    """Write the script of a part into the campaign's folder, and return its path. Raises UsageError
    if it cannot be written."""
    script = campaign.folder / part.script_name
    try:
        script.write_text(render_part(campaign, part))
        script.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{script} cannot be written: {error.strerror}") from None
    return script


def submit(
    campaign: Campaign, parts: Sequence[Part], *, max_queued: int | None = None
) -> list[str]:
    """Submit the parts of a campaign, and return the ids of their jobs. With `max_queued`, wait
    before each part until fewer than so many runs are in the queue.

    If a part is refused, the other parts with the same request are not tried, and those with
    another request are. Then SchedulerError is raised. Accepted jobs are on record and continue.
    """
    taken: list[str] = []
    refused: dict[Group, SchedulerError] = {}
    left: list[int] = []
    room = 0
    for part in parts:
        if part.group in refused:
            left += part.points
            continue
        if max_queued is not None:
            room = room or _wait_for_room(campaign, max_queued)
            room -= 1
        job_ids: list[str] = []
        try:
            _submit_part(campaign, part, job_ids)
        except UnclearError as error:
            raise UnclearError(
                f"{error.message}; it is unknown whether the job is in the queue",
                hint=f"{to_type(campaign.view, 'continue', campaign.folder)} searches for it",
            ) from None
        except HpcAmpError as error:
            if isinstance(error, UnreachableError) or not isinstance(error, SchedulerError):
                raise _some_refused(campaign, error, [*taken, *job_ids], ()) from None
            refused[part.group] = error
            left += part.points[len(job_ids) :]
        taken += job_ids
    if refused:
        raise _some_refused(campaign, next(iter(refused.values())), taken, sorted(left))
    return taken


def _some_refused(
    campaign: Campaign, error: HpcAmpError, taken: Sequence[str], points: Sequence[int]
) -> HpcAmpError:
    """The error after a submission of which the scheduler has refused `points`, or was not reached.
    `error` itself if no job was accepted."""
    if not taken:
        return error
    hint = f"{to_type(campaign.view, 'continue', campaign.folder)} submits the rest"
    if points:
        leave_out = to_type(campaign.view, "drop", campaign.folder, ranges.to_text(points))
        hint += f"; to leave it out: {leave_out}"
    were = "was" if len(taken) == 1 else "were"
    return SchedulerError(f"{error}; {count(len(taken), 'job')} {were} submitted", hint=hint)


def _submit_part(campaign: Campaign, part: Part, job_ids: list[str]) -> None:
    """Submit a part. The ids of its jobs are added to `job_ids`, also if a later job is refused."""
    script = write_script(campaign, part)
    # Signals wait until the accepted job is on record. Otherwise `continue` would submit it again.
    with waiting_for(get_scheduler(campaign.scheduler)):
        record_submitted(campaign, part)
        rundir.write_latest(campaign.folder.parent)
        arrays = arrays_of(campaign)
        try:
            for job_id in arrays.submit(script, len(part.points)):
                job_ids.append(job_id)
                if arrays.one_by_one:
                    record_accepted(campaign, part, job_id)
                if signal.sigpending() & INTERRUPTING:
                    break  # `continue` submits the other points
        except UnclearError:
            raise  # `interrupted.settle` searches for the job, because no end is on record
        except HpcAmpError:
            record_queued(campaign, part, job_ids)
            raise
        # On a machine without a queue, Ctrl-C raises before this line, and no end is on record.
        record_queued(campaign, part, job_ids)


def _wait_for_room(campaign: Campaign, max_queued: int) -> int:
    """Wait until fewer than `max_queued` runs are in the queue, and return how many more fit."""
    while True:
        queued = sum(status.state in UNDER_WAY for status in point_statuses(campaign))
        if queued < max_queued:
            return max_queued - queued
        time.sleep(POLL_SECONDS)


def was_taken(campaign: Campaign) -> bool:
    """Whether the scheduler has accepted any job of the campaign, or may have."""
    return any(one.job_ids or not one.has_ended for one in read_submitted(campaign))
