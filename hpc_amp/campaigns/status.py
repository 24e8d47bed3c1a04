"""The states of the points of a campaign, from their files and one query of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_amp.campaigns.folder import Campaign, run_name
from hpc_amp.campaigns.parts import arrays_of
from hpc_amp.campaigns.points import Point
from hpc_amp.campaigns.record import Submitted, read_submitted
from hpc_amp.errors import SchedulerError
from hpc_amp.jobs.events import read_events
from hpc_amp.schedulers import JobStatus
from hpc_amp.schedulers.arrays import Arrays

if TYPE_CHECKING:
    from hpc_amp.campaigns.timing import RunTiming
    from hpc_amp.jobs.status import RunStatus

UNDER_WAY = ("pending", "running", "unknown")
"""States in which a point must not be submitted again."""
DROPPED = "dropped"
"""The state of a point that the user has left out of the campaign."""


@dataclass(frozen=True, slots=True)
class PointStatus:
    """The status of a point. `state` is the state of its run (see `jobs.status`), or `missing`: the
    point has no run, and no job in the queue will make one."""

    point: Point
    state: str
    reason: str
    job_id: str | None
    run: RunStatus | None
    """The status of its run. None if the point has not started."""
    timing: RunTiming | None = None
    """The measurements of the run, if the view measures."""

    @property
    def index(self) -> int:
        """The number of the point."""
        return self.point.index

    @property
    def step_seconds(self) -> float | None:
        """The median time of a step in seconds; None if it is not known."""
        timing = self.timing
        if timing is None or not timing.ranks or not timing.ranks[0].has_batch:
            return None
        return timing.step_seconds

    def to_plain(self, keys: Sequence[str]) -> dict[str, Any]:
        """The status as JSON values."""
        given = zip(keys, self.point.values, strict=True)
        return {
            "point": self.index,
            "values": {key: value for key, value in given if value is not None},
            "repeat": self.point.repeat,
            "state": self.state,
            "reason": self.reason,
            "job_id": self.job_id,
            "run_dir": self.run.run_dir if self.run is not None else None,
            "attempt": self.run.attempt if self.run is not None else 0,
            "step": self.run.step if self.run is not None else None,
            "total_steps": self.run.total_steps if self.run is not None else None,
            **({"step_seconds": self.step_seconds} if self.timing is not None else {}),
        }


def point_statuses(campaign: Campaign, only: int | None = None) -> list[PointStatus]:
    """The statuses of all points, or of the point `only`. The scheduler is queried once, and a
    second time for jobs that left the queue without a reason; not at all if all points have
    ended."""
    arrays = arrays_of(campaign)
    chosen = campaign.points if only is None else [campaign.points[only]]
    points = _points(campaign, arrays, chosen)
    answers = _ask(arrays, points)
    statuses = [point.status(answers) for point in points]
    gone = {status.index for status in statuses if status.state in ("missing", "cancelled")}
    # The answer may be empty, although points are open.
    asked = any(point.is_open for point in points) and answers is not None
    if asked and gone:
        # They may have started, and even ended, after their files were read.
        newer = {view.point.index: view for view in _points(campaign, arrays, chosen)}
        statuses = [
            newer[status.index].status(answers) if status.index in gone else status
            for status in statuses
        ]
    return statuses


def _ask(arrays: Arrays, points: list[_PointView]) -> Mapping[str, JobStatus] | None:
    """The scheduler's answer for all points that are not known to have ended. None if it does not
    answer."""
    open_points = [point for point in points if point.is_open]
    job_ids = {job_id for point in open_points for job_id in point.own_job_ids}
    array_ids = {job_id for point in open_points for job_id in point.array_ids}
    if not job_ids and not array_ids:
        return {}
    tasks = {point.task_id for point in open_points}
    try:
        answers = arrays.query(sorted(array_ids), sorted(job_ids - tasks))
        silent = [job_id for job_id in sorted(job_ids) if _lacks_reason(answers.get(job_id))]
        return {**answers, **arrays.final_status(silent)} if silent else answers
    except SchedulerError:
        return None


def _lacks_reason(answer: JobStatus | None) -> bool:
    """Whether the scheduler's list does not say how a job ended."""
    return answer is None or (answer.state == "ended" and not answer.reason)


def _points(campaign: Campaign, arrays: Arrays, chosen: Sequence[Point]) -> list[_PointView]:
    places: dict[int, tuple[Submitted, int]] = {}
    for submitted in read_submitted(campaign):
        for task, point in enumerate(submitted.points):
            # A refused submission does not replace the earlier job of a point.
            if point not in places or not submitted.was_refused:
                places[point] = (submitted, task)
    names = {} if campaign.resumes else campaign.run_names()
    views = []
    for chosen_point in chosen:
        index = chosen_point.index
        run_dir = campaign.folder / "points" / names.get(index, run_name(index))
        views.append(_PointView(run_dir, chosen_point, arrays, *places.get(index, (None, 0))))
    return views


class _PointView:
    """A point, as its files describe it."""

    def __init__(
        self,
        run_dir: Path,
        point: Point,
        arrays: Arrays,
        submitted: Submitted | None,
        task: int,
    ) -> None:
        from hpc_amp.jobs.status import RunView  # a submission does not need it

        self.point = point
        self.submitted = submitted
        self.run_dir = run_dir
        self._in_turn = arrays.in_turn
        self.view = RunView(run_dir) if (run_dir / "state.jsonl").exists() else None
        if self.view is not None and self.view.is_unsettled:
            self.view.look_for_job()  # `hpc-amp resume` has submitted this point
        self.task_id: str | None = None
        if submitted is not None:
            self.task_id = arrays.task_id(submitted.job_ids, task, len(submitted.points))
        # Its newest job may not have started this point yet.
        self.waits = submitted is not None and submitted.number > _newest_array(self.run_dir)

    @property
    def is_open(self) -> bool:
        return self.waits or (self.view is not None and not self.view.ended)

    @property
    def own_job_ids(self) -> list[str]:
        return self.view.job_ids if self.view is not None and not self.view.ended else []

    @property
    def array_ids(self) -> tuple[str, ...]:
        return self.submitted.job_ids if self.submitted is not None else ()

    def status(self, answers: Mapping[str, JobStatus] | None) -> PointStatus:
        run = None
        if self.view is not None:
            from hpc_amp.jobs.status import status_of

            known = dict(answers) if answers is not None else None
            run = status_of(self.view, known)
        if self.waits:
            state, reason = self._waiting(answers)
            if state != "missing" or run is None:
                return self._with(state, reason, self.task_id, run)
        if run is None:
            return self._with("missing", "it was not submitted", None, None)
        return self._with(run.state, run.reason, run.job_id, run)

    def _with(
        self, state: str, reason: str, job_id: str | None, run: RunStatus | None
    ) -> PointStatus:
        return PointStatus(self.point, state, reason, job_id, run)

    def _waiting(self, answers: Mapping[str, JobStatus] | None) -> tuple[str, str]:
        """State and reason of a point whose newest job has written nothing to its run directory."""
        assert self.submitted is not None
        if self.task_id is None and not self.submitted.has_ended:
            return (
                "unknown",
                "its submission was interrupted: `continue` looks for its job in the queue",
            )
        if self.task_id is None:
            return "missing", "the scheduler did not take it"
        if answers is None:
            return "unknown", "the scheduler does not answer"
        answer = answers.get(self.task_id)
        if answer is not None and answer.state == "running" and self._in_turn:
            return "pending", "it waits for earlier runs of the job"
        if answer is not None and answer.state != "ended":
            return answer.state, answer.reason
        if self.submitted.cancelled:
            return "cancelled", "before it started"
        return "missing", "its job left the queue before its run began"


def _newest_array(run_dir: Path) -> int:
    """The number of the newest array that has started a point; 0 if none has."""
    return max((int(event.get("array", 0)) for event in read_events(run_dir)), default=0)
