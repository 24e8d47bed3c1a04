"""Read the output of qstat and qacct."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpc_amp.schedulers.answers import JobStatus
from hpc_amp.schedulers.base import UnreachableError, complaint, run_command

if TYPE_CHECKING:
    from xml.etree import ElementTree

AWAY = (
    r"unable to (send message to|contact) qmaster|commlib error|SGE_ROOT directory|cell directory"
    r"|set the environment variable SGE_ROOT|got send error|could not get configuration"
)
"""Messages of clients that did not reach the master."""
_FAILED = {
    "25": "it was rescheduled",
    "37": "Grid Engine ended it at its time limit or its memory limit",
}


class QueuedJob(NamedTuple):
    """A job, or a task of one, as `qstat -xml` lists it."""

    number: str
    task: str
    """The number of the task; empty if the job is not an array."""
    state: str
    """Letters: r(unning), t(ransferring), q(ueued), w(aiting), h(eld), s, S and T (suspended),
    d(eleted), E(rror), R(estarted)."""
    after: bool
    """Whether it waits for another job."""

    @property
    def id(self) -> str:
        """The id in the form that `qdel` accepts."""
        return f"{self.number}.{self.task}" if self.task else self.number

    @property
    def needs_reason(self) -> bool:
        """Whether `qstat -j` can show a reason: the job waits, but not for another job or for its
        release."""
        return "E" in self.state or ("q" in self.state and "h" not in self.state)

    def status(self, reason: str = "") -> JobStatus:
        """The status of the job. `reason` is its entry in the result of `reasons`."""
        if "E" in self.state:
            cause = reason or "see qstat -j"
            return JobStatus("ended", f"Grid Engine could not start it: {cause}", stuck=True)
        if "q" not in self.state:
            return JobStatus("running")
        if "h" in self.state and self.after:
            return JobStatus("pending", "waits for another job", after=True)
        return JobStatus("pending", "held" if "h" in self.state else reason)


def queued_jobs() -> list[QueuedJob]:
    """The user's jobs and tasks in the queue. Raises UnreachableError if Grid Engine does not
    answer."""
    from xml.etree import ElementTree

    # `-g d` lists each task separately, and `-r` lists the jobs that a job waits for.
    result = run_command(["qstat", "-u", _user(), "-g", "d", "-r", "-xml"])
    try:
        if result.returncode != 0:
            raise UnreachableError(f"qstat does not answer: {complaint(result)}")
        return [_job(entry) for entry in ElementTree.fromstring(result.stdout).iter("job_list")]
    except ElementTree.ParseError:
        raise UnreachableError(f"qstat does not answer: {complaint(result)}") from None


def _job(entry: ElementTree.Element) -> QueuedJob:
    return QueuedJob(
        number=entry.findtext("JB_job_number") or "",
        task=entry.findtext("tasks") or "",
        state=entry.findtext("state") or "",
        after=entry.find("predecessor_jobs") is not None,
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return "*"  # this node does not know the user's name


def details(numbers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the output of `qstat -j` for each job, as values by name. Jobs that have ended are left
    out. A value of several lines contains their line ends."""
    result = run_command(["qstat", "-j", ",".join(numbers)])
    if re.search(AWAY, result.stderr):
        raise UnreachableError(f"qstat does not answer: {complaint(result)}")
    for block in re.split(r"^=+$", result.stdout, flags=re.MULTILINE)[1:]:
        facts: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            match = re.match(r"(\S[^:]*?)(?: +\d+)?:(?: +(.*))?$", line)
            if match is not None:
                name = match[1]
                facts[name] = match[2] or ""
            elif name:
                facts[name] += f"\n{line.strip()}"
        yield facts


def reasons(numbers: Sequence[str]) -> dict[str, str]:
    """Why jobs wait or cannot start, as Grid Engine reports it, by the job's number."""
    found = {}
    for facts in details(numbers):
        reason = facts.get("error reason") or facts.get("scheduling info", "")
        # `11/29/2026 00:11:46 [0:1231]: error: can't chdir to /nonexistent: ...`
        reason = re.sub(r"^\d\d/\d\d/\d{4} [\d:]+ \[[\d:]+\]: (error: )?", "", reason)
        # There is one line for each node that is full; the reason follows after them.
        lines = reason.splitlines()
        chosen = [line for line in lines if not line.startswith("queue instance")] or lines[:1]
        found[facts.get("job_number", "")] = " / ".join(chosen[:3])
    return found


def ended(job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """How jobs and tasks ended, from the accounting file. Jobs that are not in it are left out: it
    has them some seconds after their end, and not every machine can read it."""
    found = {}
    for number in sorted({job_id.partition(".")[0] for job_id in job_ids}):
        text = run_command(["qacct", "-j", number]).stdout
        for block in re.split(r"^=+$", text, flags=re.MULTILINE)[1:]:
            pairs = (line.split(None, 1) for line in block.splitlines())
            facts = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
            task = facts.get("taskid", "undefined")
            job_id = number if task == "undefined" else f"{number}.{task}"
            found[job_id] = _ended(facts)  # the last entry is that of the job's last start
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def _ended(facts: dict[str, str]) -> JobStatus:
    status = facts.get("exit_status", "unknown").split()[0]
    failed, _, what = facts.get("failed", "0").partition(":")
    failed = failed.strip()
    if failed in _FAILED:
        return JobStatus("ended", _FAILED[failed])
    if failed == "100" and status == "137":
        return JobStatus("ended", "killed, perhaps by qdel (exit status 137)")
    if failed not in ("0", "100"):
        return JobStatus("ended", f"Grid Engine could not run it: {what.strip()}")
    return JobStatus("ended", f"exit status {status}")
