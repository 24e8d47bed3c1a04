"""Runs and campaigns as one list: the rows of `hpc-amp status`.

Only the standard library and small modules are imported at first. What has ended is known from the
cache (`jobs.ended`), so that a list of a thousand runs is a thousand look-ups of three files.
"""

from __future__ import annotations

import calendar
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_amp.jobs.ended import Ended, signature
from hpc_amp.jobs.events import FINAL

if TYPE_CHECKING:
    from hpc_amp.jobs.status import RunStatus

RUN = "run"
_FINAL = FINAL - {"lost"}
"""States that the files of a run show. `lost` is concluded from the queue."""
_UNDER_WAY = frozenset(("pending", "running", "unknown"))
STATES = (*sorted(_UNDER_WAY), *sorted(FINAL))
"""All states of runs and campaigns."""
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
_EXPLAINED = 20
"""Rows whose failures are explained."""


@dataclass(slots=True)
class Row:
    """A run or a campaign. Times are in seconds."""

    kind: str
    """`run`, or the command of a campaign: sweep, scale, bench."""
    name: str
    folder: str
    state: str
    reason: str
    job_id: str | None = None
    scheduler: str = ""
    attempt: int = 0
    step: int | None = None
    total_steps: int | None = None
    outcome: str | None = None
    start: int | None = None
    """When the scheduler expects to start a pending job, since the epoch."""
    seconds_to_go: int | None = None
    """Time to the last step of a running job."""
    cause: str | None = None
    """Why it failed, as `hpc-amp explain` says. Empty if that is not known, and None if its log was
    not searched."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of a campaign: how many points are in each state. `done` are those that need no other try."""
    size: int | None = None
    """The bytes of its files, if they were asked for."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state not in _UNDER_WAY

    @property
    def submitted(self) -> int | None:
        """When it was submitted, since the epoch: from the id in its path."""
        found = _TIME.match(os.path.basename(self.folder))
        if found is None:
            return None
        try:  # not strptime, which takes as long as all else of a row
            return calendar.timegm(tuple(map(int, found.groups())))
        except ValueError:
            return None  # it has the form of a time only

    def to_plain(self) -> dict[str, Any]:
        """The row as JSON values. A run has the keys of `RunStatus.to_plain`."""
        plain: dict[str, Any] = {"kind": self.kind, "name": self.name, "run_dir": self.folder}
        for name in ("state", "reason", "job_id", "scheduler", "attempt", "step", "total_steps"):
            plain[name] = getattr(self, name)
        plain |= {"outcome": self.outcome, "start": self.start}
        plain |= {"seconds_to_go": self.seconds_to_go, "cause": self.cause or None}
        if self.kind != RUN:
            plain["counts"] = self.counts
        if self.size is not None:
            plain["size"] = self.size
        return plain


@dataclass(slots=True)
class _Place:
    """A folder that may be one of a run or of a campaign."""

    parent: Path
    """The folder of all runs or campaigns."""
    key: str
    """Its path in `parent`."""
    folder: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are wanted."""

    newest: int | None = None
    """At most so many."""
    states: tuple[str, ...] = ()
    pattern: str | None = None
    """A pattern for the name, such as `gan*`."""
    keep_under_way: bool = False
    """Whether runs that have not ended are wanted besides the `newest` ones."""


def rows_of(folders: Iterable[Path], wanted: Wanted) -> tuple[list[Row], int]:
    """The wanted runs and campaigns in folders of runs or campaigns, newest first; and how many
    more there are. Each scheduler is queried once for all runs, and once for each campaign that has
    not ended."""
    places = [place for folder in folders for place in _places(folder)]
    if wanted.pattern is not None:
        places = [p for p in places if fnmatchcase(p.key.partition(os.sep)[0], wanted.pattern)]
    places.sort(key=lambda place: (os.path.basename(place.folder), place.folder), reverse=True)
    limit = wanted.newest
    if limit is not None and not wanted.states and not wanted.keep_under_way:
        rows = _read(places[:limit])
        return rows, len(places) - len(rows)
    rows = _read(places)
    if wanted.states:
        rows = [row for row in rows if row.state in wanted.states]
    if limit is None:
        return rows, 0
    if not wanted.keep_under_way:
        return rows[:limit], 0
    kept = [row for number, row in enumerate(rows) if number < limit or not row.ended]
    return kept, len(rows) - len(kept)


def _places(parent: Path) -> list[_Place]:
    """The folders <parent>/<name>/<id>. A folder that is reached by two paths is listed once."""
    root = Path(os.path.realpath(parent))
    found: dict[str, _Place] = {}
    for name in _folders(str(root)):
        above = name.path
        if name.is_symlink():
            above = os.path.realpath(above)
        for entry in _folders(above):
            if not entry.name[:1].isdecimal():
                continue
            folder = os.path.join(above, entry.name)
            if entry.is_symlink():
                folder = os.path.realpath(folder)
            found.setdefault(folder, _Place(root, f"{name.name}{os.sep}{entry.name}", folder))
    return list(found.values())


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [e for e in entries if not e.name.startswith(".") and _is_folder(e)]
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _read(places: Sequence[_Place]) -> list[Row]:
    """The rows of the places that are runs or campaigns, in the same order."""
    caches = {parent: Ended(parent) for parent in {place.parent for place in places}}
    rows: dict[str, Row] = {}
    runs: list[_Place] = []
    campaigns: list[_Place] = []
    for place in places:
        cache = caches[place.parent]
        last = cache.last(place.key)
        known = cache.get(place.key, _files(place.folder, last)) if last else None
        row = _known_row(place.folder, known)
        if row is not None:
            rows[place.folder] = row
        elif os.path.isfile(os.path.join(place.folder, "campaign.json")):
            campaigns.append(place)
        elif os.path.isfile(os.path.join(place.folder, "job.json")):
            runs.append(place)
    if runs or campaigns:
        from hpc_amp.schedulers.base import asked_once

        with asked_once():
            found = [*_runs(runs, caches), *(_campaign(one, caches) for one in campaigns)]
        rows |= {row.folder: row for row in found if row is not None}
    places = [place for place in places if place.folder in rows]
    listed = [rows[place.folder] for place in places]
    _explain(places, listed, caches)
    for cache in caches.values():
        cache.save()
    return listed


def _known_row(folder: str, known: dict[str, Any] | None) -> Row | None:
    """The row in an entry of the cache; None if it has none, or is damaged."""
    if known is None or "row" not in known:
        return None
    try:
        return Row(folder=folder, **known["row"])
    except TypeError:
        return None


def _files(folder: str, last: dict[str, Any]) -> list[str]:
    """The files that decide what is known of a run or a campaign that has ended. `last` is what was
    known of it before."""
    own = [os.path.join(folder, "state.jsonl")]
    if last.get("kind", RUN) != RUN:
        points = os.path.join(folder, "points")
        names = sorted(os.listdir(points)) if os.path.isdir(points) else []
        return own + [os.path.join(points, name, "state.jsonl") for name in names]
    attempt = os.path.join(folder, "attempts", str(last.get("attempt", 0)))
    own += [os.path.join(attempt, name) for name in ("progress.json", "outcome.json")]
    return [*own, os.path.join(folder, "logs", "job.log")]


def _runs(places: Sequence[_Place], caches: dict[Path, Ended]) -> list[Row]:
    """Read the status of runs from their files and the scheduler."""
    from hpc_amp.jobs.attempts import newest_attempt
    from hpc_amp.jobs.status import run_statuses

    attempts = [newest_attempt(Path(place.folder)) for place in places]
    numbers = [0 if attempt is None else int(attempt.name) for attempt in attempts]
    # Before the files are read: what is written meanwhile makes the entry void.
    before = [
        signature(_files(place.folder, {"attempt": number}))
        for place, number in zip(places, numbers, strict=True)
    ]
    rows = [_row(status) for status in run_statuses([Path(place.folder) for place in places])]
    for place, number, files, row in zip(places, numbers, before, rows, strict=True):
        if row.state in _FINAL and row.attempt == number:
            caches[place.parent].put(place.key, files, _entry(row))
        elif row.state == "lost":
            known = caches[place.parent].get(place.key, _files(place.folder, {"attempt": number}))
            row.cause = (known or {}).get("cause")
    return rows


def _entry(row: Row) -> dict[str, Any]:
    """What the cache keeps of a row. Of a lost run only the cause, because its state is concluded
    from the queue."""
    entry: dict[str, Any] = {"kind": row.kind, "attempt": row.attempt, "cause": row.cause}
    if row.state != "lost":
        entry["row"] = {name: getattr(row, name) for name in Row.__slots__ if name != "folder"}
    return entry


def _explain(places: Sequence[_Place], rows: Sequence[Row], caches: dict[Path, Ended]) -> None:
    """Search the logs of failures for their causes, if that was not done before. This takes time,
    so only the newest rows are explained, which people look at."""
    for place, row in list(zip(places, rows, strict=True))[:_EXPLAINED]:
        if row.kind != RUN or row.state not in ("failed", "lost") or row.cause is not None:
            continue
        before = signature(_files(row.folder, {"attempt": row.attempt}))
        row.cause = _cause(row)
        caches[place.parent].put(place.key, before, _entry(row))


def _row(status: RunStatus) -> Row:
    seconds = None
    if status.state == "running":
        from hpc_amp.jobs.attempts import seconds_to_go

        run_dir = Path(status.run_dir)
        seconds = seconds_to_go(run_dir, run_dir / "attempts" / str(status.attempt))
    return Row(
        kind=RUN,
        name=status.name,
        folder=status.run_dir,
        state=status.state,
        reason=status.reason,
        job_id=status.job_id,
        scheduler=status.scheduler,
        attempt=status.attempt,
        step=status.step,
        total_steps=status.total_steps,
        outcome=status.outcome,
        start=status.start,
        seconds_to_go=seconds,
    )


def _cause(row: Row) -> str:
    """Why a run failed, in one line; empty if that is not known, or is its reason."""
    from hpc_amp.jobs.summary import explanation

    rows = dict(explanation(row.folder, row.state, row.reason))
    text = rows.get("cause") or rows.get("first error") or ""
    return " ".join(re.sub(r"^/\S*/job\.log:\d+: ", "", text).split())


def _campaign(place: _Place, caches: dict[Path, Ended]) -> Row | None:
    """Read the status of a campaign. None if its description cannot be read."""
    from hpc_amp.campaigns.folder import read_campaign
    from hpc_amp.campaigns.views import view_of
    from hpc_amp.errors import UsageError

    try:
        campaign = read_campaign(Path(place.folder))
    except UsageError:
        return None  # it is of another version; its own commands say so
    known = {"kind": campaign.view, "attempt": 0}
    before = signature(_files(place.folder, known))
    view = view_of(campaign.view)
    states = Counter(status.state for status in view.statuses(campaign))
    counts = {"done": states.pop(view.done, 0), **dict(states.most_common())}
    row = Row(
        kind=campaign.view,
        name=campaign.name,
        folder=place.folder,
        state=_of_all(counts),
        reason="",
        scheduler=campaign.scheduler,
        step=counts["done"],
        total_steps=len(campaign.points),
        counts=counts,
    )
    if not _UNDER_WAY & counts.keys() and "lost" not in counts:
        caches[place.parent].put(place.key, before, _entry(row))
    return row


def _of_all(counts: dict[str, int]) -> str:
    """One state for all points: the first one of this order that some point has."""
    for state in ("running", "pending", "unknown", "failed", "lost", "missing", "cancelled"):
        if counts.get(state):
            return "failed" if state in ("lost", "missing") else state
    return "finished"
