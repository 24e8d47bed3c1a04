"""Explain a log, or a run from its log and its state."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO

from hpc_amp.errors import UsageError
from hpc_amp.explain.answer import Answer
from hpc_amp.explain.failures import known_failures
from hpc_amp.explain.match import Scan
from hpc_amp.jobs.status import RunStatus

# The parts of a large log that the summary of a run reads, in bytes. A summary must be fast.
_HEAD = 2 * 2**20
_TAIL = 4 * 2**20
_FAILED = ("failed", "lost")


def explain_stream(stream: BinaryIO, name: str) -> Answer:
    """Explain a log, which is read to its end. `name` is shown as its name."""
    scan = Scan(known_failures())
    scan.read(stream, name)
    return Answer(name, scan.verdict())


def explain_log(path: Path | None) -> Answer:
    """Explain a file, or standard input if `path` is None.

    Raises UsageError if the file cannot be read.
    """
    if path is None:
        return explain_stream(sys.stdin.buffer, "stdin")
    try:
        with path.open("rb") as stream:
            return explain_stream(stream, str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def explain_run(status: RunStatus) -> Answer:
    """Explain a run."""
    return _explained(status.run_dir, status.state, status.reason, bounded=False)


def explain_failure(run_dir: str, state: str, reason: str) -> Answer:
    """Explain a run that has failed, quickly: only the beginning and the end of a large log are
    read. `state` and `reason` are those of its status."""
    return _explained(run_dir, state, reason, bounded=True)


def _explained(run_dir: str, state: str, reason: str, *, bounded: bool) -> Answer:
    scan = Scan(known_failures())
    log = Path(run_dir) / "logs" / "job.log"
    remarks = []
    try:
        with log.open("rb") as stream:
            _read_log(scan, stream, log, bounded=bounded)
    except OSError as error:
        remarks.append(f"{log} cannot be read: {error.strerror}")
    if state in _FAILED or (state == "pending" and reason):
        # Entries match the reason as a line, also the reason why a queued job can never start.
        words = f"hpc-amp status: {state}: {' '.join(reason.split())}\n"
        scan.read(io.BytesIO(words.encode()), "status", first_number=None)
    verdict = scan.verdict()
    if state not in _FAILED:
        remarks.append(f"the run is {state}")
        verdict.ended_well = verdict.ended_well or state == "finished"
        if state == "finished":
            verdict.finding = verdict.error = None
    return Answer(run_dir, verdict, tuple(remarks))


def _read_log(scan: Scan, stream: BinaryIO, log: Path, *, bounded: bool) -> None:
    name = str(log)
    size = log.stat().st_size
    if not bounded or size <= _HEAD + _TAIL:
        scan.read(stream, name)
        return
    scan.read(io.BytesIO(stream.read(_HEAD)), name)
    stream.seek(size - _TAIL)
    scan.read(io.BytesIO(stream.read(_TAIL).partition(b"\n")[2]), name, first_number=None)
