"""The state of a campaign, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.points import Point, short_names
from hpc_amp.campaigns.status import DROPPED, UNDER_WAY, PointStatus
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.campaigns.words import NOT_KNOWN, count, milliseconds, one_line, under_way

if TYPE_CHECKING:
    from hpc_amp.jobs.status import RunStatus

Labels = Mapping[str, Mapping[int, str]]
"""Further columns of a table: title -> number of a point -> text."""


def points_table(keys: Sequence[str], points: Sequence[Point]) -> Table:
    """A table of the points with their values, before anything has run."""
    names = short_names(keys)
    rows = [(str(point.index), *cells(point)) for point in points]
    return Table(("point", *names), tuple(rows), words=frozenset(names))


def in_words(statuses: Sequence[PointStatus], noun: str = "point") -> str:
    """`12 points: 10 finished, 1 failed, 1 missing`."""
    states = _counts(statuses)
    counts = ", ".join(f"{number:,} {state}" for state, number in states.items())
    return f"{count(len(statuses), noun)}: {counts}"


def _counts(statuses: Sequence[PointStatus]) -> dict[str, int]:
    """How many points are in each state, the most frequent state first."""
    return dict(Counter(status.state for status in statuses).most_common())


def status_table(
    keys: Sequence[str], statuses: Sequence[PointStatus], labels: Labels | None = None
) -> Table:
    """A table with the state of each point."""
    labels = labels or {}
    names = short_names(keys)
    repeats = any(status.point.repeat > 1 for status in statuses)
    measures = any(status.step_seconds is not None for status in statuses)
    columns = ["point", *labels, *names, *(["repeat"] if repeats else []), "state", "step"]
    columns += [*(["step ms"] if measures else []), "job", "reason"]
    rows = []
    for status in statuses:
        run = status.run
        row = [str(status.index), *(label[status.index] for label in labels.values())]
        row += cells(status.point)
        if repeats:
            row.append(str(status.point.repeat))
        row.append(status.state)
        row.append(_step(run))
        if measures:
            row.append(
                NOT_KNOWN if status.step_seconds is None else milliseconds(status.step_seconds)
            )
        row += [status.job_id or NOT_KNOWN, one_line(status.reason) or NOT_KNOWN]
        rows.append(tuple(row))
    words = frozenset((*labels, *names, "state", "job", "reason"))
    return Table(tuple(columns), tuple(rows), words=words)


def cells(point: Point) -> list[str]:
    """The values of a point, for a table."""
    return [NOT_KNOWN if value is None else one_line(value) for value in point.values]


def describe_status(
    campaign: Campaign, statuses: Sequence[PointStatus], labels: Labels, noun: str
) -> str:
    """A line of totals, then one line for each point."""
    table = status_table(campaign.keys, statuses, labels)
    head = f"{campaign.name}  {campaign.id}  {in_words(statuses, noun)}"
    return "\n".join([head, *as_text(table)])


def status_to_plain(
    campaign: Campaign, statuses: Sequence[PointStatus], labels: Labels
) -> dict[str, Any]:
    """The state of a campaign and of its points, as JSON values."""
    points = []
    for status in statuses:
        further = {title: label[status.index] for title, label in labels.items()}
        points.append({**status.to_plain(campaign.keys), **further})
    return {**facts(campaign), "counts": _counts(statuses), "points": points}


def facts(campaign: Campaign) -> dict[str, Any]:
    """The facts that identify a campaign, as JSON values."""
    return {
        "view": campaign.view,
        "name": campaign.name,
        "id": campaign.id,
        "folder": str(campaign.folder),
        "scheduler": campaign.scheduler,
    }


def nothing_to_continue(statuses: Sequence[PointStatus], noun: str, done: str) -> str:
    """Why `continue` submits nothing, as text."""
    number = sum(status.state in UNDER_WAY for status in statuses)
    if not number:
        dropped = sum(status.state == DROPPED for status in statuses)
        less = f", except {count(dropped, noun)} that you dropped" if dropped else ""
        ended = f"are {done}" if done != "finished" else "have finished"
        return f"all {noun}s {ended}{less}"
    return f"{under_way(number, noun)}; there is nothing to continue"


def _step(run: RunStatus | None) -> str:
    """The step of a run, with the number of all steps if it is known."""
    if run is None or run.step is None:
        return NOT_KNOWN
    return str(run.step) if run.total_steps is None else f"{run.step}/{run.total_steps}"
