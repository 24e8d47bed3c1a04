"""The parts in which a campaign is submitted, and their scripts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_amp import __version__
from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.folder import Campaign, Group, next_run_name, run_name
from hpc_amp.campaigns.points import setting_in_words
from hpc_amp.campaigns.words import count
from hpc_amp.errors import UsageError
from hpc_amp.jobs.shell import comment, fill, quote, verbatim
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.arrays import Arrays, InOneJob, SingleJobs


@dataclass(frozen=True, slots=True)
class Part:
    """Points that are submitted together: an array, or one job."""

    number: int
    """Counts from 1, over all submissions of the campaign."""
    group: Group
    """The group whose header the script has."""
    points: tuple[int, ...]
    at_once: int | None = None
    """How many of its tasks may run at the same time."""

    @property
    def script_name(self) -> str:
        """The name of its script in the campaign's folder."""
        return f"array-{self.number}.sh"


def arrays_of(campaign: Campaign) -> Arrays:
    """The object that submits the parts of a campaign and finds their jobs."""
    scheduler = get_scheduler(campaign.scheduler)
    if campaign.submitting == "one job":
        return InOneJob(scheduler)
    if campaign.submitting == "jobs":
        return SingleJobs(scheduler)
    return scheduler.arrays()


def cut(
    campaign: Campaign,
    wanted: Collection[int],
    *,
    largest: int,
    first_number: int,
    at_once: int | None,
    in_use: int = 0,
) -> list[Part]:
    """Divide the `wanted` points into parts. An array has points of one group, at most `largest`.

    `at_once` limits how many points run at the same time. Earlier arrays may run `in_use` points,
    and each new one gets an equal share of the rest. Raises UsageError if a share is less than one.
    """
    pieces = _pieces(campaign, wanted, largest)
    if at_once is not None and at_once - in_use < len(pieces):
        earlier = f", and earlier arrays may run {in_use}" if in_use else ""
        raise UsageError(
            f"these are {count(len(pieces), 'array')}{earlier}: {at_once} points at once is less "
            "than one for each",
            hint=f"give --max-parallel {in_use + len(pieces)} or more"
            + (", or wait until the earlier ones have ended" if in_use else ""),
        )
    parts = []
    for index, (group, points) in enumerate(pieces):
        share = None
        if at_once is not None:
            share, more = divmod(at_once - in_use, len(pieces))
            share += index < more
        parts.append(Part(first_number + index, group, points, share))
    return parts


def _pieces(
    campaign: Campaign, wanted: Collection[int], largest: int
) -> list[tuple[Group, tuple[int, ...]]]:
    groups = campaign.group_of_points()
    if campaign.submitting == "jobs":
        return [(groups[point], (point,)) for point in sorted(wanted)]
    if campaign.submitting == "one job":
        # The job has the nodes of the largest of its runs.
        group = max((groups[point] for point in wanted), key=lambda one: one.nodes)
        return [(group, tuple(sorted(wanted)))]
    pieces = []
    for group in campaign.groups:
        points = [point for point in group.points if point in wanted]
        for start in range(0, len(points), largest):
            pieces.append((group, tuple(points[start : start + largest])))
    return pieces


def render_part(campaign: Campaign, part: Part) -> str:
    """The script of a part, exactly as it is submitted or started."""
    scheduler = get_scheduler(campaign.scheduler)
    arrays = arrays_of(campaign)
    directives = arrays.header(part.group.directives, len(part.points), part.at_once)
    values: dict[str, Any] = {
        "marker": verbatim(scheduler.marker),
        "directives": [verbatim(line) for line in directives],
        "name_comment": comment(campaign.name),
        "view": comment(campaign.view),
        "version": verbatim(__version__),
        "array": part.number,
        "tasks": len(part.points),
        "campaign_dir": quote(str(campaign.folder)),
        "scheduler": verbatim(campaign.scheduler),
        "own_code": verbatim("yes" if campaign.own_code else "no"),
        "shell": verbatim(arrays.shell),
    }
    names = {} if campaign.resumes else campaign.run_names()
    if campaign.submitting == "one job":
        return _render_one_job(campaign, part, values, names)
    values |= {
        "points": verbatim(_in_bash(campaign, part.points, names)),
        "task": verbatim(arrays.task),
        "launch_script": verbatim(part.group.script),
    }
    return fill("array.sh.in", values)


def _render_one_job(
    campaign: Campaign, part: Part, values: dict[str, Any], names: Mapping[int, str]
) -> str:
    groups = campaign.group_of_points()
    has_limit = get_scheduler(campaign.scheduler).limits
    limit = part.group.walltime - part.group.stop_margin
    # If all runs have the same number of nodes, each run uses all nodes of the job.
    narrows = len({groups[point].nodes for point in part.points}) > 1
    values |= {
        "tasks_per_node": part.group.tasks_per_node,
        "limit": limit if has_limit else verbatim("none"),
        "checkpoints": verbatim("keep" if campaign.resumes else "drop"),
        "runs": [
            verbatim(
                f"{quote(setting_in_words(campaign.keys, campaign.points[point]))} "
                f"{groups[point].nodes if narrows else 'all'} "
                f"{next_run_name(campaign, point, names)} {groups[point].script}"
            )
            for point in part.points
        ],
    }
    return fill("campaign.sh.in", values)


def _in_bash(campaign: Campaign, points: Sequence[int], names: Mapping[int, str]) -> str:
    """The names of the run directories, as words for bash, which may expand braces."""
    runs = [next_run_name(campaign, point, names) for point in points]
    if all(name == run_name(point) for name, point in zip(runs, points, strict=True)):
        return ranges.to_bash(points)
    return " ".join(runs)
