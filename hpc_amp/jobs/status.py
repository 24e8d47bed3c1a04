"""Where runs stand: what their files say, checked against what the scheduler says."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.jobs.attempts import Orphan, find_orphan, read_json
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.jobs.links import read_chain, write_chain
from hpc_amp.jobs.rundir import origin
from hpc_amp.jobs.unsettled import INTERRUPTED, found_since, may_still_come
from hpc_amp.schedulers import JobStatus, get_scheduler
from hpc_amp.schedulers.answers import NOT_IN_QUEUE

# States after which the scheduler has nothing more to say.
FINAL = frozenset(("finished", "failed", "cancelled", "checkpointed", "lost"))


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One line of `hpc-amp status`.

    `state` is pending, running, finished, failed, cancelled, checkpointed (stopped, may be
    resumed), lost (it left the queue without a word) or unknown (the scheduler does not answer).
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
    orphan: Orphan | None = None
    """What is at work although the job of a `running` run has ended."""

    def to_plain(self) -> dict[str, Any]:
        """For JSON. Its reason tells of an orphan."""
        plain = asdict(self)
        del plain["orphan"]
        return plain


def run_statuses(folders: Sequence[Path]) -> list[RunStatus]:
    """The status of runs, with one request to each scheduler, and none where all have ended."""
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


def status_of(view: RunView, answers: dict[str, JobStatus] | None) -> RunStatus:
    """The status of a run, given its scheduler's answer about `view.job_ids`; None where there was
    no answer."""
    status = view.status(answers)
    # The script may have written its last line between our look at the files and the scheduler's
    # answer, and so may the next job of the run.
    while status.state == "lost":
        newer = RunView(view.folder)
        if newer.job_ids != view.job_ids and not newer.ended:
            view, status = newer, newer.status(_ask(newer.scheduler, newer.job_ids))
            continue
        # Once the job has ended, the files cannot change any more.
        return newer.status(answers)
    return status


def _ask(scheduler: str, job_ids: Sequence[str]) -> dict[str, JobStatus] | None:
    """The scheduler's answer; None where there is none."""
    try:
        return get_scheduler(scheduler).query(job_ids)
    except SchedulerError:
        return None


class RunView:
    """What the files of one run say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resolved = read_json(folder / "job.json")
        # Of a copy, or of a run that was moved: the job in the queue is not this folder's.
        self.origin = origin(folder, self.resolved)
        self.scheduler: str = self.resolved.get("scheduler", "unknown")
        events = read_events(folder)
        since = max((i for i, e in enumerate(events) if e["state"] == "submitted"), default=0)
        current = events[since:]
        # From `queued`, or from the script itself, which may be faster than the scheduler's answer.
        job_ids = [str(event["job_id"]) for event in current if event.get("job_id")]
        self.job_id: str | None = job_ids[-1] if job_ids else None
        chain = read_chain(folder)
        waiting = chain[chain.index(self.job_id) + 1 :] if self.job_id in chain else []
        # The current job, then those that wait for it to end.
        self.job_ids = [*([self.job_id] if self.job_id else []), *waiting]
        # `queued` only brings the job id: the script may have recorded more before it.
        changes = [event for event in current if event["state"] != "queued"]
        self.last = changes[-1] if changes else {"state": "unknown"}
        self.stopping = any(event["state"] == "stopping" for event in current)
        # The script may have said more since, but it ends without a word then.
        self.cancelled = next((e for e in reversed(current) if e["state"] == "cancelled"), None)
        self.attempt = max((int(event.get("attempt", 0)) for event in events), default=0)
        self.submissions = [event for event in events if event["state"] == "submitted"]
        self._events = events
        self._queue_answers = True

    @property
    def is_unsettled(self) -> bool:
        """Whether the command that submitted it has not (yet) told the job's id."""
        return self.last["state"] == "submitted" and self.job_id is None and self.origin is None

    def look_for_job(self) -> None:
        """Find in the queue what that command did not tell, and record it."""
        folder = Path(self.submissions[-1].get("folder", self.folder))
        try:
            found = found_since(self.scheduler, folder, self._events)
        except SchedulerError:
            self._queue_answers = False
            return
        if not found:
            return
        self.job_id, self.job_ids = found[0], found
        with contextlib.suppress(UsageError, OSError):  # it may be somebody else's run
            record_event(self.folder, "queued", job_id=found[0])
            if len(found) > 1:
                write_chain(self.folder, found)

    @property
    def ended(self) -> bool:
        """Whether the scheduler has nothing to say of it."""
        return self.last["state"] in FINAL or self.origin is not None

    def status(self, answers: dict[str, JobStatus] | None) -> RunStatus:
        attempt_path = self.folder / "attempts" / str(self.attempt)
        progress = read_json(attempt_path / "progress.json")
        ended = read_json(attempt_path / "outcome.json")
        outcome = ended.get("outcome")
        self.orphan: Orphan | None = None
        state, reason = self._state(answers)
        if state == outcome == "failed":
            # The job's own words say more than the script's exit status.
            reason = str(ended.get("reason") or reason)
        return RunStatus(
            run_dir=str(self.folder),
            name=self.resolved.get("job", {}).get("name", self.folder.parent.name),
            job_id=self.job_id,
            scheduler=self.scheduler,
            state=state,
            reason=reason,
            attempt=self.attempt,
            step=progress.get("step"),
            total_steps=progress.get("total_steps"),
            outcome=outcome or (state if state in ("finished", "failed") else None),
            orphan=self.orphan,
        )

    def _state(self, answers: dict[str, JobStatus] | None) -> tuple[str, str]:
        state, reason = self.last["state"], str(self.last.get("reason", ""))
        if state in FINAL:
            return state, reason
        if self.origin is not None:
            return "unknown", f"this folder was copied or moved from {self.origin}: ask there"
        if self.job_id is None:
            return self._without_job()
        if not self.resolved:
            return "unknown", "its job.json cannot be read"
        if answers is None:
            return "unknown", "the scheduler does not answer"
        answer = answers.get(self.job_id, JobStatus("ended"))
        dead: list[str] = [self.job_id] if answer.stuck else []
        if answer.state == "ended":
            # Where a job was killed without a word, the next link of its chain takes over.
            link, dead_links = self._next_link(answers)
            answer, dead = link or answer, [*dead, *dead_links]
        if answer.state == "ended":
            self.orphan = find_orphan(self.folder, self.scheduler)
        if self.orphan is not None:
            return "running", str(self.orphan)
        if answer.state == "ended" and not answer.reason:
            answer = self._last_words()
        left = (
            f"; still in the queue, where it can never start: job {', '.join(dead)} "
            "(hpc-amp cancel takes it out)"
            if dead
            else ""
        )
        if answer.state == "ended" and state == "terminated":
            # Saved, and not started again.
            return "checkpointed", f"{reason}{left}"
        if answer.state == "ended" and self.cancelled is not None:
            return "cancelled", f"{self.cancelled.get('reason', '')}{left}"
        if answer.state == "ended" and state == "killed":
            # Nor was this one.
            return "failed", f"{reason}{left}"
        if answer.state == "ended":
            # The script had no chance to write its last line.
            state = "cancelled" if answer.reason.lower().startswith("cancelled") else "lost"
            return state, f"{answer.reason}{left}"
        if answer.state == "pending":
            return "pending", answer.reason
        return "running", "it was asked to save and stop" if self.stopping else ""

    def _without_job(self) -> tuple[str, str]:
        """Of a run whose job is not known."""
        try:
            (self.folder / "state.jsonl").open("rb").close()
        except FileNotFoundError:
            pass  # its command was killed before it wrote it
        except OSError as error:  # it may be somebody else's run
            return "unknown", f"its state.jsonl cannot be read: {error.strerror}"
        if not self.submissions:
            return "failed", "it was never submitted: its command was ended before that"
        if not self._queue_answers:
            return "unknown", "the scheduler does not answer"
        if may_still_come(int(self.submissions[-1].get("time", 0))):
            return "unknown", "its submission has not come to an end"
        return "failed", f"{INTERRUPTED}: no job of it is in the queue"

    def _next_link(self, answers: dict[str, JobStatus]) -> tuple[JobStatus | None, list[str]]:
        """The status of the link that takes over from a job that has ended; or, where the job ended
        in a way that lets no link start, those that are in the queue for ever."""
        for number, job_id in enumerate(self.job_ids[1:], 1):
            link = answers.get(job_id, JobStatus("ended"))
            # All before it have ended: what it still waits for does not come.
            if link.stuck or link.after:
                return None, [one for one in self.job_ids[number:] if one in answers]
            if link.state != "ended":
                return link, []
        return None, []

    def _last_words(self) -> JobStatus:
        try:
            return get_scheduler(self.scheduler).last_words(self.job_id or "", self.folder)
        except SchedulerError:
            return NOT_IN_QUEUE
