"""What the runs of a study may cost, in node-hours, before they are submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hpc_amp.config.units import format_duration
from hpc_amp.jobs.events import read_events
from hpc_amp.study.folder import Kind
from hpc_amp.study.progress import Progress
from hpc_amp.study.recipe import Measurement
from hpc_amp.study.words import count, significant


@dataclass(frozen=True, slots=True)
class Cost:
    """`most` holds if every run takes its whole time limit, `likely` if they take as long as those
    before them; None where some have none before them. Both are node-hours."""

    runs: int
    walltime: int
    most: float
    likely: float | None
    in_allocation: bool

    def __str__(self) -> str:
        limit = format_duration(self.walltime)
        jobs = "one job" if self.in_allocation else "each"
        text = f"{count(self.runs, 'run')}: {significant(self.most)} node-hours at most "
        text += f"({jobs} of {limit})"
        if self.likely is not None:
            text += f", {significant(self.likely)} by the time that the runs before took"
        return text


def estimate(
    wanted: Sequence[Measurement],
    walltime: int,
    *,
    in_allocation: bool,
    before: Sequence[Progress] = (),
) -> Cost:
    """Of runs with a time limit of `walltime` seconds each, or of them all together where they
    share a job, which keeps the nodes of the largest."""
    nodes = [one.first.nodes for one in wanted]
    largest = max(nodes, default=0)
    most = (largest if in_allocation else sum(nodes)) * walltime / 3600
    taken: dict[tuple[Kind, int], list[int]] = {}
    for one in before:
        seconds = _seconds(one) if one.is_complete else None
        if seconds is not None:
            first = one.measurement.first
            taken.setdefault((first.kind, first.nodes), []).append(seconds)
    likely = None
    if all((one.first.kind, one.first.nodes) in taken for one in wanted):
        likely = sum(
            (largest if in_allocation else one.first.nodes)
            * median(taken[one.first.kind, one.first.nodes])
            / 3600
            for one in wanted
        )
    return Cost(len(wanted), walltime, most, likely, in_allocation)


def _seconds(made: Progress) -> int | None:
    """From the start of the last attempt to its end."""
    events = read_events(made.run.run_dir) if made.run.run_dir is not None else []
    times = {event["state"]: event.get("time") for event in events}
    begin, end = times.get("started"), times.get("finished")
    return end - begin if type(begin) is int and type(end) is int else None
