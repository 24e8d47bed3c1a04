"""The status of runs, from their files and from the scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.files import read_json, without_surrogates
from hpc_amp.jobs.attempts import Orphan, find_orphan
from hpc_amp.jobs.clusters import other_cluster
from hpc_amp.jobs.events import DAMAGED, FINAL, read_events, record_event
from hpc_amp.jobs.links import read_chain, write_chain
from hpc_amp.jobs.places import is_copy, origin
from hpc_amp.jobs.unsettled import INTERRUPTED, found_since, may_still_come
from hpc_amp.schedulers import JobStatus, get_scheduler
from hpc_amp.schedulers.answers import NOT_IN_QUEUE

# States of a run that has ended. The scheduler is not queried for it any more.
STATES = ("pending", "running", "unknown", *sorted(FINAL))


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run: one line of `hpc-amp status`.

    `state` is pending, running, finished, failed, cancelled, checkpointed (stopped at a checkpoint,
    can be resumed), lost (the job ended and its end was not recorded) or unknown (the scheduler
    does not answer).
    """

    run_dir: str
    name: str
    job_id: str | None
    scheduler: str
    state: str
    reason: str
    attempt: int
    step: int | None
    total_steps: int | None
    outcome: str | None
    start: int | None = None
    """When the scheduler expects to start a pending job, in seconds since the epoch."""
    orphan: Orphan | None = None
    """An attempt that still runs although the run's job has ended. `state` is then `running`."""

    def to_plain(self) -> dict[str, Any]:
        """The status as a dictionary of JSON values, without `orphan`, which `reason` describes."""
        plain = asdict(self)
        del plain["orphan"]
        return plain


def run_statuses(folders: Sequence[Path]) -> list[RunStatus]:
    """Read the status of runs, given by their run directories. Each scheduler is queried once, and
    only if some run has not ended. The job id of an interrupted submission is searched for in the
    queue and recorded."""
    views = [RunView(folder) for folder in folders]
    for view in views:
        if view.is_unsettled:
            view.look_for_job()
    open_ids: dict[str, list[str]] = {}
    for view in views:
        if not view.ended:
            open_ids.setdefault(view.scheduler, []).extend(view.job_ids)
    answers = {name: _ask(name, job_ids) for name, job_ids in open_ids.items()}
    return [status_of(view, answers.get(view.scheduler, {})) for view in views]


def left_of_moved(status: RunStatus) -> str | None:
    """What is still there of a run whose folder was moved: its job, another one of its chain, or
    its ranks. Raises SchedulerError if the scheduler does not answer."""
    run_dir = Path(status.run_dir)
    orphan = find_orphan(run_dir, status.scheduler)
    if orphan is not None:
        return f"attempt {orphan.attempt} gives signs of life on {orphan.host}"
    if status.state in FINAL:
        return None  # the script recorded its end
    elsewhere = other_cluster(status.scheduler, read_events(run_dir))
    if elsewhere is not None:
        return f"its job was submitted on the cluster {elsewhere}"
    jobs = [*([status.job_id] if status.job_id else []), *read_chain(run_dir)]
    there = get_scheduler(status.scheduler).unended(jobs) if jobs else {}
    return f"its job {next(iter(there))} has not ended" if there else None


def status_of(view: RunView, answers: dict[str, JobStatus] | None) -> RunStatus:
    """The status of a run. `answers` is the scheduler's answer about `view.job_ids`, or None if it
    did not answer."""
    status = view.status(answers)
    # The script, and the next job of the run, may have written files after `view` was read and
    # before the scheduler answered.
    while status.state == "lost":
        newer = RunView(view.folder)
        if newer.job_ids != view.job_ids and not newer.ended:
            view, status = newer, newer.status(_ask(newer.scheduler, newer.job_ids))
            continue
        # The job has ended, so these files are final.
        return newer.status(answers)
    return status


def _ask(scheduler: str, job_ids: Sequence[str]) -> dict[str, JobStatus] | None:
    """The scheduler's answer about jobs; None if it does not answer."""
    try:
        return get_scheduler(scheduler).query(job_ids)
    except SchedulerError:
        return None


def _is_damaged(resolved: Mapping[str, Any]) -> bool:
    """Whether the content of a `job.json` has facts of a wrong type."""
    job = resolved.get("job", {})
    names = [resolved.get("scheduler", ""), resolved.get("run_dir", "")]
    if not isinstance(job, dict) or not isinstance(job.get("name", ""), str):
        return True
    return not all(isinstance(name, str) and "\0" not in name for name in names)


GONE = "its folder was moved or removed, and its job may go on"
"""The reason of a run that was there when the command began."""


class RunView:
    """The state of a run according to its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resolved = read_json(folder / "job.json")
        self._is_damaged = _is_damaged(self.resolved)
        if self._is_damaged:
            self.resolved = {}
        # Set if the run was copied or moved: the job in the queue then belongs to another folder.
        self.origin = origin(folder, self.resolved)
        events = read_events(folder)
        self.submissions = [event for event in events if event["state"] == "submitted"]
        # A damaged `job.json` may not say it.
        recorded = [
            one for event in self.submissions if isinstance(one := event.get("scheduler"), str)
        ]
        self.scheduler: str = self.resolved.get("scheduler", (recorded or ["unknown"])[-1])
        since = max((i for i, e in enumerate(events) if e["state"] == "submitted"), default=0)
        current = events[since:]
        # The event `queued` has the id, and so have those of the script, which may start before the
        # scheduler's command returns.
        job_ids = [str(event["job_id"]) for event in current if event.get("job_id")]
        self.job_id: str | None = job_ids[-1] if job_ids else None
        chain = read_chain(folder)
        waiting = chain[chain.index(self.job_id) + 1 :] if self.job_id in chain else []
        # The current job, then the jobs that wait for its end.
        self.job_ids = [*([self.job_id] if self.job_id else []), *waiting]
        # `queued` only adds the job id. The script may have recorded its events before it.
        changes = [event for event in current if event["state"] != "queued"]
        self.last = changes[-1] if changes else {"state": "unknown"}
        self.stopping = any(event["state"] == "stopping" for event in current)
        # Not necessarily the last event: the script may have recorded others after it.
        self.cancelled = next((e for e in reversed(current) if e["state"] == "cancelled"), None)
        self.attempt = max((int(event.get("attempt", 0)) for event in events), default=0)
        self._events = events
        is_open = self.last["state"] not in FINAL and self.origin is None
        # Its job is in the queue of that cluster, if this machine belongs to another one.
        self.other_cluster = other_cluster(self.scheduler, events) if is_open else None
        self._queue_answers = True

    @property
    def is_unsettled(self) -> bool:
        """Whether the run was submitted, but the job's id is not recorded yet."""
        is_open = not self.ended and self.job_id is None
        return is_open and self.last["state"] == "submitted"

    def look_for_job(self) -> None:
        """Search the queue for the job of an unsettled run, and record its id."""
        folder = Path(self.submissions[-1].get("folder", self.folder))
        try:
            found = found_since(self.scheduler, folder, self._events)
        except SchedulerError:
            self._queue_answers = False
            return
        if not found:
            return
        self.job_id, self.job_ids = found[0], found
        with contextlib.suppress(UsageError, OSError):  # the run may belong to another user
            record_event(self.folder, "queued", job_id=found[0])
            if len(found) > 1:
                write_chain(self.folder, found)

    @property
    def ended(self) -> bool:
        """Whether the scheduler need not be queried about this run."""
        is_elsewhere = self.origin is not None or self.other_cluster is not None
        return is_elsewhere or self.last["state"] in FINAL

    def status(self, answers: dict[str, JobStatus] | None) -> RunStatus:
        """The status of the run. `answers` is as for `status_of`."""
        attempt_path = self.folder / "attempts" / str(self.attempt)
        progress = read_json(attempt_path / "progress.json")
        ended = read_json(attempt_path / "outcome.json")
        outcome = ended.get("outcome")
        self.orphan: Orphan | None = None
        self.start: int | None = None
        state, reason = self._state(answers)
        if state == outcome == "failed":
            # The reason that the ranks recorded is more specific than the script's exit status.
            reason = str(ended.get("reason") or reason)
        return RunStatus(
            run_dir=str(self.folder),
            name=self.resolved.get("job", {}).get("name", self.folder.parent.name),
            job_id=self.job_id,
            scheduler=self.scheduler,
            state=state,
            reason=without_surrogates(reason),
            attempt=self.attempt,
            step=progress.get("step"),
            total_steps=progress.get("total_steps"),
            outcome=outcome or (state if state in ("finished", "failed") else None),
            start=self.start,
            orphan=self.orphan,
        )

    def _state(self, answers: dict[str, JobStatus] | None) -> tuple[str, str]:
        state, reason = self.last["state"], str(self.last.get("reason", ""))
        if state in FINAL:
            return state, reason
        if is_copy(self.origin):
            return "unknown", f"this folder is a copy of {self.origin}: ask there"
        if self.origin is not None:
            return "unknown", (
                f"this folder was moved from {self.origin}, where its job looks for it: "
                "`hpc-amp resume --here` continues it here"
            )
        if self.other_cluster is not None:
            return "unknown", f"it was submitted on the cluster {self.other_cluster}: ask there"
        if self._is_damaged:
            return "unknown", "its job.json is damaged"
        if self.job_id is None:
            return self._without_job()
        if not self.resolved:
            return "unknown", "its job.json cannot be read"
        if answers is None:
            return "unknown", "the scheduler does not answer"
        answer = answers.get(self.job_id, JobStatus("ended"))
        dead: list[str] = [self.job_id] if answer.stuck else []
        if answer.state == "ended":
            # After a job that was killed, the next job of its chain continues the run.
            link, dead_links = self._next_link(answers)
            answer, dead = link or answer, [*dead, *dead_links]
        if answer.state == "ended":
            self.orphan = find_orphan(self.folder, self.scheduler)
        if self.orphan is not None:
            return "running", str(self.orphan)
        if answer.state == "ended" and not answer.reason:
            answer = self._final_status()
        left = ""
        if dead:
            left = (
                f"; still in the queue, where it can never start: job {', '.join(dead)} "
                "(hpc-amp cancel deletes it)"
            )
        if answer.state == "ended" and state == "terminated":
            # It saved a checkpoint, and the scheduler did not start it again.
            return "checkpointed", f"{reason}{left}"
        if answer.state == "ended" and self.cancelled is not None:
            return "cancelled", f"{self.cancelled.get('reason', '')}{left}"
        if answer.state == "ended" and state == "killed":
            # It was killed, and the scheduler did not start it again.
            return "failed", f"{reason}{left}"
        if answer.state == "ended":
            # The script was killed before it could record its end.
            state = "cancelled" if answer.reason.lower().startswith("cancelled") else "lost"
            return state, f"{answer.reason}{left}"
        if answer.state == "pending":
            self.start = answer.start
            return "pending", answer.reason
        reason = "it was asked to save and stop" if self.stopping else ""
        return "running", reason

    def _without_job(self) -> tuple[str, str]:
        """State and reason of a run whose job id is not known."""
        if not self.folder.is_dir():
            return "lost", GONE
        try:
            (self.folder / "state.jsonl").open("rb").close()
        except FileNotFoundError:
            pass  # its command was killed before it wrote the file
        except OSError as error:  # the run may belong to another user
            return "unknown", f"its state.jsonl cannot be read: {error.strerror}"
        if self.last["state"] == "created":
            return "unknown", "`hpc-amp render --create` made it, and its script has not started"
        if any(event.get(DAMAGED) for event in self._events):
            return "unknown", "its state.jsonl is damaged"
        if not self.submissions:
            return "failed", "it was never submitted: its command was ended before that"
        if not self._queue_answers:
            return "unknown", "the scheduler does not answer"
        if may_still_come(int(self.submissions[-1].get("time", 0))):
            return "unknown", "its submission has not ended yet"
        return "failed", f"{INTERRUPTED}: no job of it is in the queue"

    def _next_link(self, answers: dict[str, JobStatus]) -> tuple[JobStatus | None, list[str]]:
        """The status of the next job of the chain, after the current job has ended. If the job
        ended in a way that no further job can start, None and the jobs that stay in the queue
        forever."""
        for number, job_id in enumerate(self.job_ids[1:], 1):
            link = answers.get(job_id, JobStatus("ended"))
            # All jobs before it have ended, so a job that still waits for one can never start.
            if link.stuck or link.after:
                return None, [one for one in self.job_ids[number:] if one in answers]
            if link.state != "ended":
                return link, []
        return None, []

    def _final_status(self) -> JobStatus:
        try:
            return get_scheduler(self.scheduler).final_status(self.job_id or "", self.folder)
        except SchedulerError:
            return NOT_IN_QUEUE
