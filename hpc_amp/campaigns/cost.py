"""What the runs of a campaign may cost, in node-hours, before they are submitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.words import count, significant
from hpc_amp.config.units import format_duration
from hpc_amp.jobs.events import read_events
from hpc_amp.schedulers import get_scheduler


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of some runs, in node-hours. `most` is the cost if every run takes its whole time
    limit, and `likely` the cost if the runs take as long as earlier runs with the same settings.
    `likely` is None if a setting has no earlier run. `walltime` is in seconds."""

    runs: int
    walltime: int
    most: float
    likely: float | None
    share_a_limit: bool
    """Whether `walltime` is the limit of one job that makes all runs."""

    @property
    def most_in_words(self) -> str:
        """`43.5 node-hours at most`."""
        return f"{significant(self.most)} node-hours at most"

    def __str__(self) -> str:
        limit = format_duration(self.walltime)
        jobs = "one job" if self.share_a_limit else "each"
        text = f"{count(self.runs, 'run')}: {self.most_in_words} "
        text += f"({jobs} of {limit})"
        if self.likely is not None:
            text += f", {significant(self.likely)} by the time that earlier runs took"
        return text


def estimate(
    campaign: Campaign, wanted: Collection[int], before: Sequence[PointStatus] = ()
) -> Cost:
    """The cost of the `wanted` points, at least one. Runs that share a job have the nodes of the
    largest of them. A machine without a scheduler counts as one node, and its limit holds for each
    run. `before` are the present statuses, from which `likely` is computed."""
    scheduler = get_scheduler(campaign.scheduler)
    groups = campaign.group_of_points()
    nodes = {point: groups[point].nodes for point in wanted}
    if campaign.submitting == "one job":
        largest = max(nodes.values()) if scheduler.limits else 1
        nodes = dict.fromkeys(nodes, largest)
    shares_a_limit = campaign.submitting == "one job" and scheduler.limits
    walltime = max(groups[point].walltime for point in wanted)
    hours = walltime / 3600
    most = hours * (max(nodes.values()) if shares_a_limit else sum(nodes.values()))
    taken: dict[tuple[str | None, ...], list[int]] = {}
    for status in before:
        seconds = _seconds(status) if status.run is not None else None
        if seconds is not None:
            taken.setdefault(status.point.values, []).append(seconds)
    settings = {point: campaign.points[point].values for point in wanted}
    likely = None
    if all(values in taken for values in settings.values()):
        from statistics import median  # a new campaign does not need it

        likely = sum(n * median(taken[settings[point]]) / 3600 for point, n in nodes.items())
    return Cost(len(nodes), walltime, most, likely, shares_a_limit)


def _seconds(status: PointStatus) -> int | None:
    """Seconds from the start of the last attempt of a finished run to its end; else None."""
    events = read_events(Path(status.run.run_dir)) if status.run is not None else []
    times = {event["state"]: event.get("time") for event in events}
    begin, end = times.get("started"), times.get("finished")
    return end - begin if type(begin) is int and type(end) is int else None
