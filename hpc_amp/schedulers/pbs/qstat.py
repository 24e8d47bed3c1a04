"""Read the output of `qstat -f`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from hpc_amp.schedulers.answers import JobStatus

_ENDED_WITH = {
    -29: "PBS ended it at its time limit",
    -27: "PBS ended it: it used more memory than it requested",
    -20: "its node was lost",
}


def parse_qstat(text: str, heading: str = r"Job Id:(.*)") -> dict[str, dict[str, str]]:
    """The attributes of objects in the output of `qstat -f`, by name. The output has a line for
    each object that matches `heading`, a regular expression whose group is the name, then indented
    lines `name = value`. Lines that begin with a tab continue the value before. Other headings:
    `QUEUE` for `qstat -Qf`, `SERVER` for `qstat -Bf`, `NODE` for `pbsnodes -a`."""
    objects: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        found = re.fullmatch(heading, line)
        if found is not None:
            attributes = objects.setdefault(found[1].strip(), {})
        elif line.startswith("\t"):
            attributes[name] = attributes.get(name, "") + line[1:]
        elif " = " in line:
            name, _, value = line.strip().partition(" = ")
            attributes[name] = value
    return objects


QUEUE, SERVER, NODE = r"Queue:(.*)", r"Server:(.*)", r"(\S+)"


def _reason(comment: str) -> str:
    """Why a job waits. After a requeue, the comment may still be that of its last start, which is
    no reason."""
    return "" if re.match(r"Job run at|Job Array Began|Job was sent", comment) else comment


def _start(attributes: Mapping[str, str]) -> int | None:
    """When PBS expects to start a job, if the administrator lets it estimate that
    (backfilling, or `est_start_time_freq`). The time is written as by `ctime`."""
    try:
        text = attributes["estimated.start_time"]
        return int(text) if text.isdecimal() else int(time.mktime(time.strptime(text)))
    except (KeyError, ValueError):
        return None


def job_status(attributes: Mapping[str, str]) -> JobStatus:
    """The status of a job from its attributes in `qstat -f`."""
    state, comment = attributes.get("job_state", ""), attributes.get("comment", "")
    if state in ("R", "E", "B", "S", "U"):
        return JobStatus("running")
    if state in ("Q", "H", "W", "T", "M"):
        # A job for which others wait has the attribute `depend` too, with `beforeany:...`.
        waits = "after" in attributes.get("depend", "")
        if state == "H" and waits and "s" in attributes.get("Hold_Types", ""):
            return JobStatus("pending", "waits for another job", after=True)
        reason = _reason(comment) or ("held" if state == "H" else "")
        return JobStatus("pending", reason, start=_start(attributes))
    status = attributes.get("Exit_status")
    if status is None:
        return JobStatus("ended", "it never ran: it was deleted, or the job it waited for was")
    number = int(status)
    if "terminated by" in comment or number in (256 + 15, 256 + 9):
        return JobStatus("ended", f"cancelled with qdel (exit status {number})")
    return JobStatus("ended", _ENDED_WITH.get(number, f"exit status {number}"))
