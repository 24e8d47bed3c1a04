"""What the runs of a study may cost, in node-hours, before they are submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hpc_amp.campaigns.words import count, significant
from hpc_amp.config.units import format_duration
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.plan import Plan
from hpc_amp.study.folder import Kind
from hpc_amp.study.progress import Progress
from hpc_amp.study.recipe import Measurement


@dataclass(frozen=True, slots=True)
class Cost:
    """`most` holds if every run takes its whole time limit, `likely` if they take as long as those
    before them; None where some have none before them. Both are node-hours."""

    runs: int
    walltime: int
    most: float
    likely: float | None
    share_a_limit: bool

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
            text += f", {significant(self.likely)} by the time that the runs before took"
        return text


def estimate(
    wanted: Sequence[Measurement],
    plan: Plan,
    *,
    in_allocation: bool,
    before: Sequence[Progress] = (),
) -> Cost:
    """Of runs of the job of `plan`. Its time limit is that of each run, or of them all together
    where they share a job, which keeps the nodes of the largest. A machine without a scheduler
    stands for all nodes, and has no limit for all of them."""
    shares_a_limit = in_allocation and plan.scheduler.limits
    held = {one: one.first.nodes for one in wanted}
    if in_allocation:
        largest = max(held.values(), default=0) if plan.scheduler.limits else 1
        held = dict.fromkeys(held, largest)
    hours = plan.walltime / 3600
    most = hours * (max(held.values(), default=0) if shares_a_limit else sum(held.values()))
    taken: dict[tuple[Kind, int], list[int]] = {}
    for one in before:
        seconds = _seconds(one) if one.is_complete else None
        if seconds is not None:
            taken.setdefault(_point(one.measurement), []).append(seconds)
    likely = None
    if all(_point(one) in taken for one in wanted):
        likely = sum(nodes * median(taken[_point(one)]) / 3600 for one, nodes in held.items())
    return Cost(len(wanted), plan.walltime, most, likely, shares_a_limit)


def _point(measurement: Measurement) -> tuple[Kind, int]:
    return measurement.first.kind, measurement.first.nodes


def _seconds(made: Progress) -> int | None:
    """From the start of the last attempt to its end."""
    events = read_events(made.run.run_dir) if made.run.run_dir is not None else []
    times = {event["state"]: event.get("time") for event in events}
    begin, end = times.get("started"), times.get("finished")
    return end - begin if type(begin) is int and type(end) is int else None
